"""The body of POST /v1/chat/completions."""

from typing import ClassVar, Literal

from pydantic import Field

from server.errors import bad_request
from server.schemas.generation import UNSUPPORTED, GenerationRequest
from server.schemas.structure import ResponseFormat
from server.schemas.template import TemplateFields
from server.schemas.tools import ToolChoice


class ChatRequest(GenerationRequest, TemplateFields):
    """A chat completion in text. Fields that only identify a client or its request to OpenAI's own
    services (`user`, `safety_identifier`, `prompt_cache_key`, `metadata`) are accepted and change
    nothing."""

    unsupported: ClassVar[frozenset[str]] = UNSUPPORTED | {
        *("audio", "chat_template", "documents", "function_call", "functions", "moderation"),
        *("prompt_cache_options", "reasoning_effort", "verbosity", "web_search_options"),
    }

    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat = ResponseFormat(type="text")
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] = Field(default=["text"], min_length=1)
    service_tier: Literal["auto", "default"] = "auto"
    store: Literal[False] = False
    metadata: dict[str, str] = Field(default={}, max_length=16)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    add_special_tokens: bool = False

    @property
    def length_wish(self) -> tuple[int | None, str]:
        """The length that the client asked for, if any, and the field that says so."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None. Raises ApiError for `top_logprobs` on its own."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise bad_request("'top_logprobs' needs 'logprobs: true'.", "top_logprobs")
        return None
