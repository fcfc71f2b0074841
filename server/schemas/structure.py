"""What an answer must look like: OpenAI's `response_format` and the wider `structured_outputs`."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from server.body import type_name
from server.schemas.request_model import RequestModel

MAX_DEPTH = 64  # levels of a schema, far below where recursive readers of it would fail


def parse_schema(value: object) -> dict[str, Any]:
    """A JSON schema as it came, nulls in it included."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON schema, but got {type_name(value)}")
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _items(one)]
        if not level:
            return value
    raise ValueError(f"a JSON schema may be at most {MAX_DEPTH} levels deep")


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


JsonSchema = Annotated[
    dict[str, Any], PlainValidator(parse_schema, json_schema_input_type=dict[str, Any])
]


class JsonSchemaFormat(RequestModel):
    """A named schema. It is enforced whether `strict` is set or not; `description` is not shown to
    the model."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    json_schema: JsonSchema = Field(alias="schema", default={})
    strict: bool = False
    description: str | None = None


class ResponseFormat(RequestModel):
    """Free text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_fits_its_type(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' goes with type 'json_schema', and that type needs it")
        return self


class StructuredOutputs(RequestModel):
    """Exactly one way to say what the whole answer is: a JSON schema, a regular expression, one of
    several texts, or a grammar in Lark's or GBNF's notation."""

    json_schema: JsonSchema | None = Field(alias="json", default=None)
    regex: str | None = Field(None, min_length=1)
    choice: list[str] | None = Field(None, min_length=1, max_length=1024)
    grammar: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _exactly_one(self) -> "StructuredOutputs":
        ways = (self.json_schema, self.regex, self.choice, self.grammar)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("expected exactly one of 'json', 'regex', 'choice' and 'grammar'")
        if self.choice is not None and "" in self.choice:
            raise ValueError("a choice cannot be empty")
        return self
