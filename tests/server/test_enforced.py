"""The whole way with a real engine: an answer keeps its promise, streamed or drafted or not."""

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
import pytest

from engine.client import ThreadedEngine
from engine.config import SpeculationConfig
from engine.text.tokenizer import Tokenizer
from engine.types import EngineInfo
from server.app import create_app
from server.settings import ServerSettings
from tests.engine.tiny import EOS, MAX_LEN, VOCAB, make_core
from tests.server.conftest import client_of
from tests.server.sse import events
from tests.server.test_tools import assemble, whole
from tests.unit.tokenizer_kinds import tokenizer_of

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% if tools %}<tool_call> {% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"way": {"enum": ["up", "down"]}},
                "required": ["way"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("lift", "stairs")
]
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "way": {"enum": ["up", "down"]}},
    "required": ["on", "way"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_of("byte_level"))


@pytest.fixture
async def http(tmp_path: Any) -> AsyncIterator[httpx.AsyncClient]:
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE, "utf-8")
    info = EngineInfo("tiny", "Llama", "cpu", "float32", VOCAB, MAX_LEN, 4, (EOS,))
    engine = ThreadedEngine(lambda: (make_core(tokenizer=tokenizer()), info))
    settings = ServerSettings(chat_template=template)
    async with client_of(create_app(engine, tokenizer(), SpeculationConfig(), settings)) as client:
        yield client


async def both(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The message whole and streamed, with each method."""
    messages = []
    for method in ("off", "auto", "goose"):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "seed": 3}
        body |= {"max_tokens": 120, "speculation": {"method": method}, **fields}
        response = await http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        messages.append(whole(response))
        streamed = await http.post(CHAT, json={**body, "stream": True})
        messages.append(assemble(events(streamed.text)))
    return messages


@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_schema(http: httpx.AsyncClient, temperature: int) -> None:
    first, *others = await both(http, response_format=NAMED, temperature=temperature)
    assert set(json.loads(first["content"])) == {"on", "way"}
    assert first["reason"] == "stop"
    assert all(other == first for other in others)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "lift"}}])
async def test_a_call(http: httpx.AsyncClient, choice: Any) -> None:
    wishes = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    first, *others = await both(http, **wishes)
    (call,) = first["calls"]
    assert call["name"] == "lift" or choice == "required"
    assert json.loads(call["arguments"])["way"] in ("up", "down")
    assert (first["content"], first["reason"]) == (None, "tool_calls")
    assert all(other == first for other in others)


async def test_choices_with_a_prediction(http: httpx.AsyncClient) -> None:
    fields = {"structured_outputs": {"choice": ["left turn", "right turn"]}, "max_tokens": 30}
    body = {"model": "tiny", "prompt": "go", "n": 3, "seed": 1, **fields}
    plain = (await http.post("/v1/completions", json=body)).json()
    assert {choice["text"] for choice in plain["choices"]} <= {"left turn", "right turn"}
    text = plain["choices"][0]["text"]
    prediction = {"type": "content", "content": text}
    fast = (await http.post("/v1/completions", json={**body, "prediction": prediction})).json()
    assert fast["choices"] == plain["choices"]
    assert fast["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    details = fast["usage"]["completion_tokens_details"]
    size = len(tokenizer().encode(text, False))
    assert sum(details.values()) == 3 * size
    assert details["accepted_prediction_tokens"] >= 1
