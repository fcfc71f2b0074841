"""The functions that a model may call, and whether it must."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from server.schemas.request_model import RequestModel
from server.schemas.structure import JsonSchema

NAME = r"^[A-Za-z0-9_.-]{1,64}$"


class FunctionDefinition(RequestModel):
    """A function. Without `parameters` it takes none. `strict`: a call's arguments must follow the
    schema even where the model chooses to call by itself."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False


class Tool(RequestModel):
    """One tool: always a function."""

    type: Literal["function"]
    function: FunctionDefinition

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The JSON schema of a call's arguments."""
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        return nothing if self.function.parameters is None else self.function.parameters

    def for_template(self) -> dict[str, Any]:
        """The tool as templates show it to the model."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.schema_of_arguments
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one function that must be called."""

    name: str


def parse_tool_choice(value: object) -> str | NamedTool:
    """`none`, `auto`, `required` or a named function."""
    match value:
        case "none" | "auto" | "required":
            return str(value)
        case {"type": "function", "function": {"name": str(name), **rest}, **others}:
            if not rest and not others:
                return NamedTool(name)
    raise ValueError(
        "expected 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': ...}}"
    )


ToolChoice = Annotated[
    str | NamedTool, PlainValidator(parse_tool_choice, json_schema_input_type=str | dict[str, Any])
]
