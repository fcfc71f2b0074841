"""Extensions that peers share: stop strings shown, control tokens shown, token ids returned."""

from typing import Any

import httpx
import pytest

from engine import __version__
from tests.server.conftest import build, client_of
from tests.server.fakes import BOS, EOS, FakeEngine, FakeTokenizer, cycle, reply, reply_ids
from tests.server.sse import complete, joined, stream
from tests.server.test_validation import check_error


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"stop": "cd"}, "abcd"),
        ({"stop_token_ids": [ord("c")]}, "abc"),
    ],
)
async def test_include_stop(client: httpx.AsyncClient, wish: dict[str, Any], text: str) -> None:
    body = {"prompt": "p", "include_stop_str_in_output": True, **wish}
    answer = await complete(client, **body)
    assert answer["choices"][0]["text"] == text
    assert joined(await stream(client, **body)) == text


async def test_show_special_tokens(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = reply_ids(ord("a"), BOS, ord("b"))
    hidden = await complete(client, prompt="p")
    assert hidden["choices"][0]["text"] == "ab"
    shown = await complete(client, prompt="p", skip_special_tokens=False)
    assert shown["choices"][0]["text"] == "a<bos>b"
    assert engine.requests[-1].sampling.text.skips_special is False


async def test_add_special_tokens() -> None:
    engine = FakeEngine(cycle("a"))
    async with client_of(build(engine, tokenizer=FakeTokenizer(adds_bos=True))) as http:
        await complete(http, prompt="x")
        await complete(http, prompt="x", add_special_tokens=False)
        await complete(http, prompt="")
        messages = [{"role": "user", "content": "x"}]
        await complete(http, "/v1/chat/completions", messages=messages)
    first, second, third, chat = [request.prompt_token_ids for request in engine.requests]
    assert (first, second, third) == ((BOS, ord("x")), (ord("x"),), (BOS,))
    assert BOS not in chat


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_return_token_ids(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    engine.script = reply("🙂")
    prompt: dict[str, Any] = {"prompt": "hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}
    answer = await complete(client, path, return_token_ids=True, **prompt)
    choice = answer["choices"][0]
    ids = [*"🙂".encode(), EOS]
    assert choice["token_ids"] == ids
    sent = list(engine.requests[0].prompt_token_ids)
    assert (choice if path == "/v1/completions" else answer)["prompt_token_ids"] == sent
    chunks = await stream(client, path, return_token_ids=True, **prompt)
    streamed = [i for c in chunks for i in c["choices"][0].get("token_ids", [])]
    assert streamed == ids
    opening = chunks[0] if "chat" in path else chunks[0]["choices"][0]
    assert opening["prompt_token_ids"] == sent


async def test_truncate_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"prompt": "x" * 300 + "end", "truncate_prompt_tokens": 5, "max_tokens": 1}
    answer = await complete(client, **body, echo=True)
    assert engine.requests[0].prompt_token_ids == tuple(b"xxend")
    assert answer["choices"][0]["text"] == "xxenda"
    assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_continuous_usage(client: httpx.AsyncClient, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "hi"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, path, max_tokens=9, stream_options=options, **prompt)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert chunks[-1]["choices"] == []
    body = {"model": "fake/model", "stream": True, **prompt}
    body["stream_options"] = {"continuous_usage_stats": True}
    assert check_error(await client.post(path, json=body), 400)["param"] == "stream_options"


class TestTokenize:
    """/tokenize gives the ids that the generating routes see; /detokenize reads them back."""

    @pytest.mark.parametrize("text", ["hello", "你🙂", "<eos>", " a  b"])
    async def test_round_trip(
        self, client: httpx.AsyncClient, engine: FakeEngine, text: str
    ) -> None:
        response = await client.post("/tokenize", json={"prompt": text, "model": "fake/model"})
        found = response.json()
        await complete(client, prompt=text)
        assert found["tokens"] == list(engine.requests[0].prompt_token_ids)
        assert found["count"] == len(found["tokens"])
        assert found["max_model_len"] == 256
        assert found["token_strs"] is None
        back = await client.post("/detokenize", json={"tokens": found["tokens"]})
        assert back.json() == {"prompt": text}

    async def test_messages(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        messages = [{"role": "user", "content": "hi"}]
        found = (await client.post("/tokenize", json={"messages": messages})).json()
        await complete(client, "/v1/chat/completions", messages=messages)
        assert found["tokens"] == list(engine.requests[0].prompt_token_ids)

    async def test_names(self, client: httpx.AsyncClient) -> None:
        body = {"prompt": "aé", "return_token_strs": True}
        found = (await client.post("/tokenize", json=body)).json()
        assert found["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]

    async def test_empty(self, client: httpx.AsyncClient) -> None:
        found = (await client.post("/tokenize", json={"prompt": ""})).json()
        assert (found["count"], found["tokens"]) == (0, [])

    @pytest.mark.parametrize(
        ("path", "body", "status", "param"),
        [
            ("/tokenize", {}, 400, "prompt"),
            ("/tokenize", {"prompt": [1]}, 400, "prompt"),
            ("/tokenize", {"prompt": "a", "x": 1}, 400, "x"),
            ("/tokenize", {"prompt": "a", "messages": []}, 400, "messages"),
            ("/tokenize", {"prompt": "a", "model": "b"}, 404, "model"),
            ("/detokenize", {"tokens": [9999]}, 400, "tokens"),
            ("/detokenize", {"tokens": ["1"]}, 400, "tokens[0]"),
            ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
            ("/detokenize", {}, 400, "tokens"),
        ],
    )
    async def test_refused(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: dict[str, Any],
        status: int,
        param: str,
    ) -> None:
        assert check_error(await client.post(path, json=body), status)["param"] == param


async def test_version(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": __version__}
