"""One chat message, reduced to what chat templates read."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, PlainValidator, model_validator
from typing_extensions import TypedDict  # pydantic reads typing's own from Python 3.12 on

from server.schemas.request_model import RequestModel


def parse_content(value: object) -> str:
    """Text of a content field: a string, or text parts joined by line breaks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("expected a string or an array of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ValueError("only parts of type 'text' are supported")
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError("a text part has exactly 'type' and a string 'text'")
        texts.append(part["text"])
    return "\n".join(texts)


class TextPart(TypedDict):
    """One text of several."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    type: Literal["text"]
    text: str


Content = Annotated[str, PlainValidator(parse_content, json_schema_input_type=str | list[TextPart])]


class CalledFunction(RequestModel):
    """A function that the assistant called, its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(RequestModel):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call with its arguments as an object, which is what templates expect."""
        try:
            arguments = orjson.loads(self.function.arguments)
        except orjson.JSONDecodeError:
            arguments = self.function.arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


_ABSENT = {"type": "null"}
_TEXT = {"type": ["string", "array"]}
_BY_ROLE: list[Any] = [  # what `_fits_its_role` checks, for the published document
    {
        "required": ["content"],
        "properties": {"content": _TEXT, "tool_calls": _ABSENT, "tool_call_id": _ABSENT},
    },
    {
        "required": ["content"],
        "properties": {"role": {"const": "tool"}, "content": _TEXT, "tool_calls": _ABSENT},
    },
    {
        "required": ["tool_calls"],
        "properties": {
            "role": {"const": "assistant"},
            "tool_calls": {"type": "array", "minItems": 1},
            "tool_call_id": _ABSENT,
        },
    },
]


class ChatMessage(RequestModel):
    """A message of any role."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _BY_ROLE})

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> "ChatMessage":
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("only the assistant calls tools")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("'tool_call_id' belongs to role 'tool'")
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as templates read it. They know `developer` under its older name."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls is not None:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message
