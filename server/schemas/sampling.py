"""The sampling fields that completions and chat share."""

import re
from typing import Annotated

from pydantic import Field, PlainValidator

from server.body import type_name
from server.errors import bad_request
from server.schemas.request_model import RequestModel

MAX_STOPS = 4
MAX_STOP_TOKEN_IDS = 256
INT64 = 2**63
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def parse_stop(value: object) -> tuple[str, ...]:
    """The stop strings. Raises ApiError for more than four, an empty one or another type."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        message = f"expected a string or an array of strings, but got {type_name(value)} instead."
        raise bad_request(f"Invalid type for 'stop': {message}", "stop", "invalid_type")
    if len(stops) > MAX_STOPS:
        message = f"expected an array with at most {MAX_STOPS} elements, got {len(stops)}."
        raise bad_request(f"Invalid 'stop': {message}", "stop", "array_above_max_length")
    for stop in stops:
        if not isinstance(stop, str):
            message = f"Invalid type for 'stop': expected strings, but got {type_name(stop)}."
            raise bad_request(message, "stop", "invalid_type")
        if not stop:
            raise bad_request("Invalid 'stop': a stop string cannot be empty.", "stop")
    return tuple(dict.fromkeys(stops))


def parse_logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs. Raises ApiError for keys that are no ids and biases out of range."""
    if not isinstance(value, dict):
        message = f"expected an object, but got {type_name(value)} instead."
        raise bad_request(f"Invalid type for 'logit_bias': {message}", "logit_bias", "invalid_type")
    biases = []
    for key, bias in value.items():
        param = f"logit_bias.{key}"[:80]
        if not _TOKEN_ID.fullmatch(key):
            raise bad_request("Invalid key in 'logit_bias': expected a token id.", param)
        if type(bias) not in (int, float):
            message = f"Invalid type for '{param}': expected a number, but got {type_name(bias)}."
            raise bad_request(message, param, "invalid_type")
        if not -100 <= bias <= 100:
            raise bad_request(f"Invalid '{param}': expected a value between -100 and 100.", param)
        biases.append((int(key), float(bias)))
    return tuple(biases)


# What the published document says of the two fields that are parsed by hand.
_Stop = Annotated[str, Field(min_length=1)]
_Stops = _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)]
_Biases = dict[
    Annotated[str, Field(pattern=f"^({_TOKEN_ID.pattern})$")],
    Annotated[float, Field(ge=-100, le=100)],
]

StopStrings = Annotated[tuple[str, ...], PlainValidator(parse_stop, json_schema_input_type=_Stops)]
LogitBias = Annotated[
    tuple[tuple[int, float], ...], PlainValidator(parse_logit_bias, json_schema_input_type=_Biases)
]


class SamplingFields(RequestModel):
    """How tokens are drawn and when a choice ends. Token ids are checked against the vocabulary
    later, where the model is known."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: LogitBias = ()
    seed: int | None = Field(None, ge=-INT64, le=INT64 - 1)
    min_tokens: int = Field(0, ge=0)
    stop: StopStrings = ()
    stop_token_ids: list[int] = Field(default=[], max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = False
    n: int = Field(1, ge=1)
