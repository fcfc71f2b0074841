"""Predicted outputs on both routes: who drafts from them, and what the usage says of them."""

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine, reply
from tests.server.sse import events

ROUTES = ["/v1/completions", "/v1/chat/completions"]


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": "hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}
    return {"model": "fake/model", "max_tokens": 9, **prompt, **fields}


async def ask(path: str, **fields: Any) -> tuple[FakeEngine, httpx.Response]:
    engine = FakeEngine(reply("abcdef"))
    async with client_of(build(engine)) as http:
        return engine, await http.post(path, json=body(path, **fields))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("content", ["abcdxx", [{"type": "text", "text": "abcdxx"}]])
async def test_counts_are_apart_from_the_completion(path: str, content: Any) -> None:
    prediction = {"type": "content", "content": content}
    engine, response = await ask(path, prediction=prediction)
    usage = response.json()["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
    }
    (request,) = engine.requests
    assert request.prediction_token_ids == tuple(b"abcdxx")
    assert request.speculation.method == "auto"


@pytest.mark.parametrize("path", ROUTES)
async def test_stream_and_choices_add_up(path: str) -> None:
    prediction = {"type": "content", "content": "abq"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, response = await ask(path, prediction=prediction, n=2, stream=True, stream_options=options)
    usages = [event["usage"] for event in events(response.text)]
    assert usages[-1]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
    }
    assert "completion_tokens_details" not in usages[0]


@pytest.mark.parametrize("path", ROUTES)
async def test_without_a_prediction_there_are_no_details(path: str) -> None:
    _, response = await ask(path, prediction=None)
    assert "completion_tokens_details" not in response.json()["usage"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["off", "goose", "ptd"])
async def test_a_method_that_would_ignore_it_is_refused(path: str, method: str) -> None:
    prediction = {"type": "content", "content": "a"}
    engine, response = await ask(path, prediction=prediction, speculation={"method": method})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prediction"
    assert engine.requests == []


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "static", "content": "a"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": "a" * 257}, "prediction.content"),  # the context has 256
        ({"type": "content", "content": [{"type": "image"}]}, "prediction.content"),
        ({"type": "content", "content": "a", "more": 1}, "prediction.more"),
    ],
    ids=json.dumps,
)
async def test_what_is_wrong_is_named(path: str, prediction: Any, param: str) -> None:
    engine, response = await ask(path, prediction=prediction)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert engine.requests == []
