"""How messages become a prompt: shared by chat and by /tokenize."""

from typing import Any

from pydantic import Field, field_validator

from server.schemas.message import ChatMessage
from server.schemas.request_model import RequestModel
from server.schemas.tools import Tool

# Arguments of the renderer itself; a template's variables cannot take their place.
_RESERVED = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation"}
    | {"documents", "max_length", "messages", "padding", "return_assistant_tokens_mask"}
    | {"return_dict", "return_tensors", "template", "tokenize", "tokenizer_kwargs", "tools"}
    | {"truncation", "variables"}
)


class TemplateFields(RequestModel):
    """Messages and how the model's template is to render them."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] = Field(default=[], max_length=128)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default={})

    @field_validator("tools")
    @classmethod
    def _distinct_names(cls, value: list[Tool]) -> list[Tool]:
        names = [tool.function.name for tool in value]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_reserved_name(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_RESERVED.intersection(value))
        if taken:
            raise ValueError(f"'{taken[0]}' is not a variable of the template")
        return value
