"""Request bodies: bounded, strict JSON, strict types; every fault is a 4xx that names the field."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from server.errors import ApiError, bad_request

Model = TypeVar("Model", bound=BaseModel)
_JSON_UTF8 = re.compile(r'application/json(\s*;\s*charset="?utf-?8"?)?\s*;?', re.IGNORECASE)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The raw body. Raises ApiError 415 for another content type, 413 above `max_bytes`."""
    if not _JSON_UTF8.fullmatch(request.headers.get("content-type", "").strip()):
        raise _unsupported_media("Send the body as 'Content-Type: application/json' in UTF-8.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _unsupported_media("Compressed request bodies are not supported.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises ApiError 400 for anything else."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"We could not parse the JSON body of your request: {error}"
        raise bad_request(message, None, "invalid_json") from error
    if not isinstance(value, dict):
        raise bad_request("The body of the request must be a JSON object.", None, "invalid_type")
    return value


def parse_body(raw: bytes, model: type[Model]) -> Model:
    """The validated request. Raises ApiError 400 for malformed JSON or the first invalid field."""
    try:
        return model.model_validate(parse_object(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _explain(first["type"], first["loc"], first["input"], first.get("ctx", {})) from error


def _unsupported_media(message: str) -> ApiError:
    return ApiError(415, message, code="unsupported_media_type")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The body exceeds {max_bytes} bytes.", code="request_too_large")


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {
    "greater_than_equal": ("below_min_value", "below minimum value", ">=", "ge"),
    "greater_than": ("below_min_value", "below minimum value", ">", "gt"),
    "less_than_equal": ("above_max_value", "above maximum value", "<=", "le"),
    "less_than": ("above_max_value", "above maximum value", "<", "lt"),
}


def _explain(
    kind: str, loc: Sequence[int | str], value: object, context: Mapping[str, Any]
) -> ApiError:
    param = param_of(loc)
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
        return bad_request(message, param, "missing_required_parameter")
    if kind == "extra_forbidden":
        return bad_request(f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    if kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind]}, but got {type_name(value)} instead."
        return bad_request(f"Invalid type for '{param}': {message}", param, "invalid_type")
    if kind in _BOUNDS:
        suffix, fault, sign, key = _BOUNDS[kind]
        number = "integer" if isinstance(value, int) else "decimal"
        message = (
            f"{number} {fault}. Expected a value {sign} {context[key]}, but got {value} instead."
        )
        return bad_request(f"Invalid '{param}': {message}", param, f"{number}_{suffix}")
    if kind in ("too_long", "too_short"):
        bound = context["max_length" if kind == "too_long" else "min_length"]
        side, end = ("most", "above_max") if kind == "too_long" else ("least", "below_min")
        message = f"Invalid '{param}': expected an array with at {side} {bound} elements."
        return bad_request(message, param, f"array_{end}_length")
    reason = str(context.get("reason") or context.get("error") or kind.replace("_", " "))
    if "expected" in context:
        reason = f"expected {context['expected']}"
    return bad_request(f"Invalid '{param}': {reason}.", param)


def param_of(loc: Sequence[int | str]) -> str:
    """The field as clients write it: `messages[0].content`."""
    name = ""
    for part in loc:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def type_name(value: object) -> str:
    """What JSON calls the type of `value`."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"
