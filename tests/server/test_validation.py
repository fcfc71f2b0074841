"""Everything wrong with a request: a 4xx in OpenAI's shape that names the field, and an engine that
never heard of it."""

import time
from typing import Any

import httpx
import pytest

from engine.config import METHODS
from server.settings import ServerSettings
from tests.server.conftest import build, client_of
from tests.server.fakes import VOCAB, FakeEngine, cycle
from tests.server.sse import complete

OK = {"model": "fake/model", "prompt": "p"}


def check_error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The envelope: exactly four keys, `code` a string or null."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": -15335}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": "16"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_tokens": 10_000}, "max_tokens", "context_length_exceeded"),
    ({"max_tokens": 2**64}, "max_tokens", "invalid_type"),
    ({"max_tokens": 2**63}, "max_tokens", "context_length_exceeded"),
    ({"min_tokens": 17}, "min_tokens", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
    ({"top_k": -2}, "top_k", "integer_below_min_value"),
    ({"top_k": 1.0}, "top_k", "invalid_type"),
    ({"min_p": 2}, "min_p", "integer_above_max_value"),
    ({"presence_penalty": 3}, "presence_penalty", "integer_above_max_value"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "decimal_below_min_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "integer_below_min_value"),
    ({"seed": 1.5}, "seed", "invalid_type"),
    ({"seed": 2**63}, "seed", "integer_above_max_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 17}, "n", "integer_above_max_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "array_above_max_length"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": [1]}, "stop", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop_token_ids": [VOCAB + 1], "min_tokens": 2}, "stop_token_ids", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "invalid_value"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]", "invalid_type"),
    ({"stop_token_ids": [1] * 300}, "stop_token_ids", "array_above_max_length"),
    ({"logit_bias": {"191222": -100}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value"),
    ({"logit_bias": {"abc": 1}}, "logit_bias.abc", "invalid_value"),
    ({"logit_bias": {"05": 1}}, "logit_bias.05", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5", "invalid_type"),
    ({"logit_bias": {"5": True}}, "logit_bias.5", "invalid_type"),
    ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
    ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    ({"foo": 1}, "foo", "unknown_parameter"),
    ({"model_config": {}}, "model_config", "unknown_parameter"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"bad_words": ["x"]}, "bad_words", "unsupported_parameter"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids", "unsupported_parameter"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex", "invalid_grammar"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"user": 1}, "user", "invalid_type"),
    ({"model": 1}, "model", "invalid_type"),
    ({"speculation": "off"}, "speculation", "invalid_type"),
    ({"speculation": {"method": "magic"}}, "speculation.method", "invalid_value"),
    ({"speculation": {"method": 1}}, "speculation.method", "invalid_type"),
    ({"speculation": {"width": 0}}, "speculation.width", "invalid_value"),
    ({"speculation": {"depth": 1000}}, "speculation.depth", "invalid_value"),
    ({"speculation": {"budget": True}}, "speculation.budget", "invalid_type"),
    ({"speculation": {"tree": 1}}, "speculation.tree", "unknown_parameter"),
]

BAD_PROMPTS: list[tuple[Any, str]] = [
    ("", "empty_prompt"),
    ([], "empty_prompt"),
    ([[]], "empty_prompt"),
    ([""], "empty_prompt"),
    ([[1], []], "empty_prompt"),
    (5, "invalid_type"),
    (True, "invalid_type"),
    ({}, "invalid_type"),
    ([True], "invalid_type"),
    ([1, "a"], "invalid_type"),
    (["a", 1], "invalid_type"),
    ([1.0], "invalid_type"),
    ([[1, True]], "invalid_type"),
    ([None], "invalid_type"),
    ([VOCAB], "invalid_value"),
    ([-1], "invalid_value"),
    ([2**64], "invalid_type"),
    ("x" * 300, "context_length_exceeded"),
    ("x" * 256, "context_length_exceeded"),
    (["ok", "x" * 300], "context_length_exceeded"),
    (["x"] * 129, "array_above_max_length"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD_FIELDS)
async def test_bad_field(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, code: str
) -> None:
    for stream in (False, True):
        body = {"stream": stream, **OK, **fields}
        error = check_error(await client.post("/v1/completions", json=body), 400)
        assert (error["param"], error["code"]) == (param, code), error
        assert error["type"] == "invalid_request_error"
    assert engine.requests == []


async def test_stream_options_need_a_stream(client: httpx.AsyncClient) -> None:
    body = {**OK, "stream_options": {"include_usage": True}}
    error = check_error(await client.post("/v1/completions", json=body), 400)
    assert error["param"] == "stream_options"


@pytest.mark.parametrize(("prompt", "code"), BAD_PROMPTS)
async def test_bad_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: Any, code: str
) -> None:
    for stream in (False, True):
        body = {"model": "fake/model", "prompt": prompt, "stream": stream}
        error = check_error(await client.post("/v1/completions", json=body), 400)
        assert (error["param"], error["code"]) == ("prompt", code), error
    assert engine.requests == []
    await complete(client, prompt="p")


@pytest.mark.parametrize("missing", ["model", "prompt"])
@pytest.mark.parametrize("is_null", [True, False])
async def test_required(client: httpx.AsyncClient, missing: str, is_null: bool) -> None:
    body: dict[str, Any] = {k: v for k, v in OK.items() if k != missing}
    if is_null:
        body[missing] = None
    error = check_error(await client.post("/v1/completions", json=body), 400)
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


async def test_below_minimum_says_what_openai_says(client: httpx.AsyncClient) -> None:
    error = check_error(
        await client.post("/v1/completions", json={**OK, "max_tokens": -15335}), 400
    )
    assert error["message"] == (
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 0, but got -15335 "
        "instead."
    )


async def test_context_error_counts_tokens(client: httpx.AsyncClient) -> None:
    body = {**OK, "prompt": "x" * 300, "max_tokens": 7}
    error = check_error(await client.post("/v1/completions", json=body), 400)
    for number in ("256", "307", "300", "7"):
        assert number in error["message"]


async def test_room_at_the_context_end(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="x" * 252)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    answer = await complete(client, prompt="x" * 255, max_tokens=1)
    assert answer["usage"]["total_tokens"] == 256
    error = check_error(
        await client.post("/v1/completions", json={**OK, "prompt": "x" * 252, "max_tokens": 5}), 400
    )
    assert error["code"] == "context_length_exceeded"


async def test_unknown_model(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={**OK, "model": "gpt-4"})
    error = check_error(response, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_half_a_million_stops(client: httpx.AsyncClient) -> None:
    body = {**OK, "stop": ["x"] * 500_000}
    began = time.monotonic()
    check_error(await client.post("/v1/completions", json=body), 400)
    assert time.monotonic() - began < 2.0


class TestBodies:
    """What is not strict JSON in UTF-8 under the right content type."""

    @pytest.mark.parametrize(
        ("content_type", "status"),
        [
            (None, 415),
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
            ("application/json; charset=utf-16", 415),
            ("application/json", 200),
            ("Application/JSON; charset=UTF-8", 200),
        ],
    )
    async def test_content_type(
        self, client: httpx.AsyncClient, content_type: str | None, status: int
    ) -> None:
        headers = {} if content_type is None else {"content-type": content_type}
        content = b'{"model": "fake/model", "prompt": "p"}'
        response = await client.post("/v1/completions", content=content, headers=headers)
        if status == 200:
            assert response.status_code == 200
        else:
            assert check_error(response, status)["code"] == "unsupported_media_type"

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b'"x"',
            b"null",
            b"\xff\xfe{\x00}\x00",
            b'{"model":"fake/model","prompt":"\\ud800"}',
            b'{"model":"fake/model","prompt":"p","temperature":NaN}',
            b'{"model":"fake/model","prompt":"p","temperature":Infinity}',
            b'{"model":"fake/model","prompt":"p","logit_bias":{"5":1e999}}',
            b"[" * 100_000,
        ],
    )
    async def test_malformed(self, client: httpx.AsyncClient, content: bytes) -> None:
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/completions", content=content, headers=headers)
        error = check_error(response, 400)
        assert error["code"] in ("invalid_json", "invalid_type")

    async def test_compressed(self, client: httpx.AsyncClient) -> None:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        check_error(await client.post("/v1/completions", content=b"x", headers=headers), 415)

    async def test_too_large(self) -> None:
        engine = FakeEngine(cycle("a"))
        async with client_of(build(engine, ServerSettings(max_body_bytes=1024))) as http:
            big = {**OK, "prompt": "x" * 2000}
            error = check_error(await http.post("/v1/completions", json=big), 413)
            assert error["code"] == "request_too_large"

            async def chunks():  # no content-length: counted while it comes
                for _ in range(20):
                    yield b" " * 100

            headers = {"content-type": "application/json"}
            response = await http.post("/v1/completions", content=chunks(), headers=headers)
            check_error(response, 413)


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/", 404),
        ("GET", "/v1/nope", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/responses", 404),
        ("POST", "/v1/audio/speech", 404),
        ("POST", "/v1/completions/", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/other", 404),
    ],
)
async def test_routes(client: httpx.AsyncClient, verb: str, path: str, status: int) -> None:
    error = check_error(await client.request(verb, path), status)
    assert error["type"] == "invalid_request_error"


class TestModels:
    """GET /v1/models and /v1/models/{id}."""

    async def test_list_and_one(self, client: httpx.AsyncClient) -> None:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        for path in ("/v1/models/fake/model", "/v1/models/fake%2Fmodel"):
            assert (await client.get(path)).json() == listed["data"][0]
        model = listed["data"][0]
        assert (model["id"], model["object"], model["created"]) == ("fake/model", "model", 1)
        assert model["owned_by"] == "treeline"
        assert model["max_model_len"] == 256

    async def test_speculation(self, client: httpx.AsyncClient) -> None:
        model = (await client.get("/v1/models/fake/model")).json()
        shown = model["speculation"]
        assert shown["method"] == "auto"
        assert set(shown["methods"]) == set(METHODS) - {"rest"}  # for want of a datastore
        chosen = {name: shown[name] for name in ("width", "depth", "budget")}
        assert chosen == shown["methods"]["auto"]
        assert shown["bounds"] == {"width": 10, "depth": 32, "budget": 128}
