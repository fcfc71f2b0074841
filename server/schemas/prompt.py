"""The four forms of a prompt, told apart by what lists hold: `[0]` is one prompt of one token."""

from typing import Annotated

from pydantic import Field, PlainValidator

from server.body import type_name
from server.errors import ApiError, bad_request

PromptText = str | tuple[int, ...]


def _refuse(found: str) -> ApiError:
    message = (
        "Invalid type for 'prompt': expected a string, an array of strings, an array of token ids, "
        f"or an array of arrays of token ids, but got {found} instead."
    )
    return bad_request(message, "prompt", "invalid_type")


def _token_ids(value: list[object]) -> tuple[int, ...]:
    if not value:
        raise bad_request("Invalid 'prompt': it holds no token.", "prompt", "empty_prompt")
    for item in value:
        if type(item) is not int:
            raise _refuse(f"an array with {type_name(item)}")
    return tuple(value)  # type: ignore[arg-type]


def parse_prompt(value: object) -> tuple[PromptText, ...]:
    """All prompts of a request, in order. Raises ApiError."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _refuse(type_name(value))
    if not value or type(value[0]) is int:
        return (_token_ids(value),)
    if isinstance(value[0], str):
        for item in value:
            if not isinstance(item, str):
                raise _refuse(f"an array with {type_name(item)} beside strings")
        return tuple(value)
    prompts = []
    for item in value:
        if not isinstance(item, list):
            raise _refuse(f"an array with {type_name(item)}")
        prompts.append(_token_ids(item))
    return tuple(prompts)


_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
_IdLists = Annotated[list[_Ids], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1)]

Prompts = Annotated[
    tuple[PromptText, ...],
    PlainValidator(parse_prompt, json_schema_input_type=str | _Texts | _Ids | _IdLists),
]
