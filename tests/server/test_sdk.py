"""The real `openai` client against a live port: what users will do."""

import asyncio

import openai
import pytest

from server.errors import unavailable
from tests.server.conftest import Live, wait_until
from tests.server.fakes import reply


@pytest.fixture
def sdk(live: Live):
    """A synchronous client that retries as it does by default."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        yield client


def test_whole(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="fake/model", prompt="hi", max_tokens=5)
    assert answer.choices[0].text == "abcde"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7
    assert answer._request_id


def test_stream(sdk: openai.OpenAI, live: Live) -> None:
    text = "Grüße, 世界 🙂"
    live.engine.script = reply(text)
    options = {"include_usage": True}
    stream = sdk.completions.create(
        model="fake/model", prompt="hi", max_tokens=50, stream=True, stream_options=options, n=2
    )
    chunks = list(stream)
    for index in range(2):
        choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert "".join(choice.text for choice in choices) == text
        assert [c.finish_reason for c in choices if c.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * (len(text.encode()) + 1)


def test_extension(sdk: openai.OpenAI) -> None:
    wish = {"speculation": {"method": "ptd", "width": 2, "stats": True}, "top_k": 5}
    answer = sdk.completions.create(model="fake/model", prompt="hi", extra_body=wish)
    assert answer.model_extra is not None
    assert answer.model_extra["speculation"]["method"] == "ptd"
    assert answer.model_extra["speculation"]["tau"] == 4.0


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["fake/model"]
    assert sdk.models.retrieve("fake/model").id == "fake/model"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_errors(sdk: openai.OpenAI, live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model="fake/model", prompt="x" * 999)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError):
        sdk.completions.create(model="fake/model", prompt="x", stream=True, suffix="y")
    with pytest.raises(openai.NotFoundError):
        sdk.embeddings.create(model="fake/model", input="x")
    assert live.engine.requests == []


def test_an_error_in_the_middle_of_a_stream(sdk: openai.OpenAI, live: Live) -> None:
    live.engine.step_seconds = 0.01
    stream = sdk.completions.create(
        model="fake/model",
        prompt="hi",
        max_tokens=200,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(stream)
    live.engine.fail_next = "x"
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "internal_error"


def test_a_dead_engine_is_reported(sdk: openai.OpenAI, live: Live) -> None:
    live.engine.kill("gone")
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.with_options(max_retries=0).completions.create(model="fake/model", prompt="x")
    assert caught.value.status_code in (500, 503)


def test_what_may_succeed_later_is_tried_again(
    sdk: openai.OpenAI, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that was full, and after `Retry-After` is not; bad input is asked once."""
    asked: list[int] = []

    def full_at_first(*_: int) -> None:
        asked.append(1)
        if len(asked) == 1:
            raise unavailable("The queue is full.")

    monkeypatch.setattr(live.app.state.context.dispatcher, "check_open", full_at_first)
    answer = sdk.completions.create(model="fake/model", prompt="hi", max_tokens=3)
    assert answer.choices[0].text == "abc"
    assert len(asked) == 3  # refused; tried again: before its body is read, and after
    with pytest.raises(openai.BadRequestError):
        sdk.completions.create(model="fake/model", prompt="hi", max_tokens=-1)
    assert len(asked) == 4


async def test_an_async_stream_that_is_left_frees_the_engine(live: Live) -> None:
    live.engine.step_seconds = 0.005
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        wish = {"ignore_eos": True}
        async with await client.completions.create(
            model="fake/model", prompt="hi", max_tokens=200, stream=True, extra_body=wish
        ) as stream:
            async for _ in stream:
                break
    await asyncio.to_thread(wait_until, lambda: live.engine.is_idle)
    assert len(live.engine.aborted) == 1


async def test_async(live: Live) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:

        async def one(prompt: str) -> str:
            stream = await client.completions.create(
                model="fake/model", prompt=prompt, max_tokens=30, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*(one("p" * size) for size in range(1, 9)))
    assert set(texts) == {"abcdefghijklmnopqrstuvwxyz abc"}
