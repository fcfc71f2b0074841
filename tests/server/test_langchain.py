"""A client that is not OpenAI's: LangChain's ChatOpenAI, with what its users do, on a live port."""

from collections.abc import Iterator

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError
from pydantic import BaseModel

from tests.server.conftest import Live, serving
from tests.server.fakes import FakeEngine, reply
from tests.server.test_structured import accepts
from tests.server.test_tools import ToolTokenizer


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """One live server; tests set its engine's script."""
    with serving(FakeEngine(reply(""), max_model_len=2048), tokenizer=ToolTokenizer()) as live:
        yield live


@pytest.fixture
def chat(server: Live) -> ChatOpenAI:
    """The client, as its manual sets it up for another base address."""
    return ChatOpenAI(
        model="fake/model",
        base_url=f"{server.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=200,
        seed=3,
    )


def test_invoke(server: Live, chat: ChatOpenAI) -> None:
    server.engine.script = reply("Grüße 🙂")
    answer = chat.invoke([("system", "be kind"), ("human", "hi")])
    assert answer.content == "Grüße 🙂"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len("Grüße 🙂".encode()) + 1
    sampling = server.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.0, 200)


def test_stream(server: Live, chat: ChatOpenAI) -> None:
    server.engine.script = reply("one two three")
    pieces = list(chat.stream("hi", stream_usage=True))
    assert len([piece for piece in pieces if piece.content]) > 1
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.content == "one two three"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == len("one two three") + 1


async def test_batch(server: Live, chat: ChatOpenAI) -> None:
    server.engine.script = lambda prompt, index: prompt[-12] if index == 0 else 256
    asked = ["a", "b", "c", "d"]
    assert [answer.content for answer in await chat.abatch(asked)] == asked


@pytest.mark.parametrize("streams", [False, True])
def test_tool_call(server: Live, chat: ChatOpenAI, streams: bool) -> None:
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    server.engine.script = reply(f"<tool_call>\n{call}\n</tool_call>")
    bound = chat.bind_tools([weather], tool_choice="weather")
    question = [("human", "Does it rain in Oslo?")]
    if streams:
        first, *rest = bound.stream(question)
        answer = sum(rest, start=first)
    else:
        answer = bound.invoke(question)
    (found,) = answer.tool_calls
    assert (found["name"], found["args"]) == ("weather", {"city": "Oslo"})
    assert server.engine.requests[-1].sampling.grammar is not None
    server.engine.script = reply("Yes.")
    told = weather.invoke(found)
    assert bound.invoke([*question, answer, told]).content == "Yes."


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(server: Live, chat: ChatOpenAI, method: str) -> None:
    text = '{"name": "Oslo", "people": 700000}'
    call = f'<tool_call>\n{{"name": "City", "arguments": {text}}}\n</tool_call>'
    said = call if method == "function_calling" else text
    server.engine.script = reply(said)
    city = chat.with_structured_output(City, method=method).invoke("Name a city, as JSON.")
    assert city == City(name="Oslo", people=700000)
    grammar = server.engine.requests[-1].sampling.grammar
    assert accepts(grammar, said)
    assert not accepts(grammar, f"Here: {said}")


def test_refusal(chat: ChatOpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat.bind(reasoning_effort="high").invoke("hi")
    assert caught.value.param == "reasoning_effort"
