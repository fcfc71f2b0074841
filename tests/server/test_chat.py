"""POST /v1/chat/completions: messages, deltas, lengths, log-probabilities, refusals."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.errors import ConfigError
from server.settings import ServerSettings
from tests.server.conftest import Live, build, client_of
from tests.server.fakes import FakeEngine, cycle, reply, reply_ids, usage
from tests.server.sse import complete, stream
from tests.server.test_validation import check_error

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


async def test_shape(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = reply("Hello")
    answer = await complete(client, PATH, messages=HI)
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("system_fingerprint").startswith("treeline-")
    message = {"role": "assistant", "content": "Hello", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert answer == {
        "object": "chat.completion",
        "model": "fake/model",
        "choices": [choice],
        "usage": usage(19, 6, cached=9),
    }
    assert bytes(engine.requests[0].prompt_token_ids) == b"[user]hi[assistant]"


async def test_deltas(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script, engine.waits_for_readers = reply("Hello"), True
    chunks = await stream(client, PATH, messages=HI, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [(choice["delta"], choice["finish_reason"]) for choice in choices] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hell"}, None),
        ({"content": "o"}, None),
        ({}, "stop"),
    ]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage(19, 6, cached=9)


async def test_every_choice_opens_and_ends_once(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, PATH, messages=HI, n=3, max_tokens=9)
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["delta"] for choice in own if choice["finish_reason"]] == [{}]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "abcdefghi"


async def test_default_length_fills_the_context(client: httpx.AsyncClient) -> None:
    answer = await complete(client, PATH, messages=HI)
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_newer_length_field_wins(client: httpx.AsyncClient) -> None:
    answer = await complete(client, PATH, messages=HI, max_tokens=9, max_completion_tokens=3)
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "developer", "content": "be kind"}, *HI], "[system]be kind[user]hi"),
        ([{"role": "system", "content": "s"}, *HI], "[system]s[user]hi"),
        (
            [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
            "[user]a\nb",
        ),
        ([*HI, {"role": "assistant", "content": "x"}, *HI], "[user]hi[assistant]x[user]hi"),
        (
            [
                *HI,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "42"},
            ],
            "[user]hi[assistant][tool]42",
        ),
    ],
)
async def test_messages(
    client: httpx.AsyncClient, engine: FakeEngine, messages: list[Any], prompt: str
) -> None:
    await complete(client, PATH, messages=messages)
    assert bytes(engine.requests[0].prompt_token_ids).decode() == f"{prompt}[assistant]"


async def test_continue_the_last_message(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [*HI, {"role": "assistant", "content": "So"}]
    await complete(client, PATH, messages=messages, continue_final_message=True)
    assert bytes(engine.requests[0].prompt_token_ids) == b"[user]hi[assistant]So"


async def test_template_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    with pytest.raises(ConfigError, match="chat_template"):
        build(FakeEngine(cycle("a")), ServerSettings(chat_template=file))
    file.write_text("T:")
    engine = FakeEngine(cycle("a"))
    async with client_of(build(engine, ServerSettings(chat_template=file))) as http:
        await complete(http, PATH, messages=HI)
    assert bytes(engine.requests[0].prompt_token_ids) == b"T:hi"


class TestLogprobs:
    """A list of tokens whose bytes, joined, are the text."""

    async def test_bytes_join_to_the_text(
        self, client: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.script = reply_ids(ord("a"), 259, 260)
        body = {"messages": HI, "logprobs": True, "top_logprobs": 2}
        answer = await complete(client, PATH, **body)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == [
            "a",
            "bytes:\\xf0\\x9f",
            "bytes:\\x99\\x82",
            "<eos>",
        ]
        spelled = b"".join(bytes(entry["bytes"]) for entry in content)
        assert spelled.decode() == answer["choices"][0]["message"]["content"] == "a🙂"
        first = content[0]["top_logprobs"]
        assert first[0] == {"token": "a", "logprob": -0.5, "bytes": [97]}
        assert len(first) == 2
        chunks = await stream(client, PATH, **body)
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        streamed = [entry for part in parts if part for entry in part["content"]]
        assert streamed == content

    async def test_own_only(self, client: httpx.AsyncClient) -> None:
        answer = await complete(client, PATH, messages=HI, logprobs=True, max_tokens=1)
        entry = answer["choices"][0]["logprobs"]["content"][0]
        assert entry == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "y": 1}]}, "messages[0].y"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        ({"messages": [*HI, *HI]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 9999}, "max_tokens"),
        ({"max_completion_tokens": 9999}, "max_completion_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"store": True}, "store"),
        ({"prompt": "x"}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"n": 0}, "n"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
    ],
)
async def test_refused(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    for is_stream in (False, True):
        body = {"model": "fake/model", "messages": HI, "stream": is_stream, **fields}
        error = check_error(await client.post(PATH, json=body), 400)
        assert error["param"] == param, error
    assert engine.requests == []


async def test_what_changes_nothing_is_accepted(client: httpx.AsyncClient) -> None:
    extra = {
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
        "tools": None,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await complete(client, PATH, messages=HI, **extra)


async def test_stop_is_filtered_here_too(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = reply("The quick brown fox")
    chunks = await stream(client, PATH, messages=HI, stop=["own fox"])
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "The quick br"
    assert chunks[-1]["choices"][0]["stop_reason"] == "own fox"


async def test_speculation(client: httpx.AsyncClient) -> None:
    wish = {"method": "goose", "stats": True}
    body = {"messages": HI, "max_tokens": 8, "speculation": wish}
    answer = await complete(client, PATH, **body)
    assert answer["speculation"]["tau"] == 4.0
    chunks = await stream(client, PATH, **body)
    assert chunks[-1]["speculation"] == answer["speculation"]


class TestSdk:
    """Through the real client."""

    def test_whole_and_stream(self, live: Live) -> None:
        live.engine.script = reply("Grüße 🙂")
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as sdk:
            answer = sdk.chat.completions.create(
                model="fake/model",
                messages=[{"role": "user", "content": "hi"}],
                logprobs=True,
                max_completion_tokens=50,
            )
            assert answer.choices[0].message.content == "Grüße 🙂"
            assert answer.choices[0].logprobs is not None
            with sdk.chat.completions.stream(
                model="fake/model", messages=[{"role": "user", "content": "hi"}], n=2
            ) as helper:
                for _ in helper:
                    pass
                final = helper.get_final_completion()
        assert [choice.message.content for choice in final.choices] == ["Grüße 🙂"] * 2

    async def test_async(self, live: Live) -> None:
        live.engine.script = reply("ok")
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as sdk:
            chunks = await sdk.chat.completions.create(
                model="fake/model",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            seen = [chunk async for chunk in chunks]
        assert "".join(c.choices[0].delta.content or "" for c in seen if c.choices) == "ok"
        assert seen[-1].usage is not None

    def test_template_errors(self, live: Live) -> None:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x") as sdk:
            user = {"role": "user", "content": "hi"}
            with pytest.raises(openai.BadRequestError, match="alternate"):
                sdk.chat.completions.create(model="fake/model", messages=[user, user])
