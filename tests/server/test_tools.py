"""Tools at the border: the prompt, the promise, and calls in whole and streamed answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from server.settings import ServerSettings
from server.tool_format import FORMATS
from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine, FakeTokenizer, reply
from tests.server.sse import events
from tests.server.test_structured import accepts

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TICK = '{"name": "clock", "arguments": {}}'


class ToolTokenizer(FakeTokenizer):
    """Its template shows tools, and asks for calls in one family's way."""

    def __init__(self, instructions: str = "use <tool_call>") -> None:
        super().__init__()
        self.instructions = instructions

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        shown = f"{self.instructions}{json.dumps(tools)}" if tools else ""
        return shown + super().render_chat(messages, **options)


async def ask(
    answer: str, tokenizer: FakeTokenizer | None = None, parser: str = "auto", **fields: Any
) -> tuple[FakeEngine, httpx.Response]:
    engine = FakeEngine(reply(answer), max_model_len=2048)
    app = build(engine, ServerSettings(tool_parser=parser), tokenizer or ToolTokenizer())
    body = {"model": "fake/model", "messages": [{"role": "user", "content": "hi"}]}
    body |= {"tools": [WEATHER, CLOCK], **fields}
    async with client_of(app) as http:
        return engine, await http.post(PATH, json=body)


def assemble(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client builds from deltas."""
    content, calls, reason = "", [], None
    for choice in (chunk["choices"][0] for chunk in chunks if chunk["choices"]):
        content += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(calls)
                calls.append({"name": delta["function"]["name"], "arguments": ""})
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return {"content": content or None, "calls": calls, "reason": reason}


def whole(response: httpx.Response) -> dict[str, Any]:
    choice = response.json()["choices"][0]
    calls = choice["message"].get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return {
        "content": choice["message"]["content"] or None,
        "calls": [call["function"] for call in calls],
        "reason": choice["finish_reason"],
    }


OSLO = {"name": "weather", "arguments": '{"city": "Oslo"}'}
NOW = {"name": "clock", "arguments": "{}"}
SAYS = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", None, [OSLO], "tool_calls"),
    (
        "hermes",
        f"Wait.\n<tool_call>{CALL}</tool_call>\n<tool_call>{TICK}</tool_call>",
        "Wait.",
        [OSLO, NOW],
        "tool_calls",
    ),
    ("hermes", "No need.", "No need.", [], "stop"),
    ("hermes", "<tool_call>oh", "<tool_call>oh", [], "stop"),
    ("llama3_json", CALL.replace("arguments", "parameters"), None, [OSLO], "tool_calls"),
    ("llama3_json", f"{CALL}; {TICK}", None, [OSLO, NOW], "tool_calls"),
    ("json", f"[{CALL}, {TICK}]", None, [OSLO, NOW], "tool_calls"),
    ("json", '{"a": 1}', '{"a": 1}', [], "stop"),
]


@pytest.mark.parametrize("method", ["off", "goose"])
@pytest.mark.parametrize(("parser", "answer", "content", "calls", "reason"), SAYS)
async def test_stream_and_whole_say_the_same(
    parser: str, answer: str, content: str | None, calls: list, reason: str, method: str
) -> None:
    wishes = {"parser": parser, "max_tokens": 500, "speculation": {"method": method}}
    expected = {"content": content, "calls": calls, "reason": reason}
    engine, response = await ask(answer, **wishes)
    assert whole(response) == expected
    _, streamed = await ask(answer, stream=True, **wishes)
    assert assemble(events(streamed.text)) == expected
    assert engine.requests[0].sampling.grammar is None  # auto, nothing strict: free


async def test_arguments_stream_as_they_come() -> None:
    answer = f"<tool_call>{CALL}</tool_call>"
    _, response = await ask(answer, stream=True, max_tokens=500, speculation={"method": "off"})
    deltas = [
        delta
        for chunk in events(response.text)
        for delta in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert len(deltas) > 10
    assert [set(delta["function"]) for delta in deltas[1:]] == [{"arguments"}] * (len(deltas) - 1)


async def test_a_cut_call_ends_by_length() -> None:
    _, response = await ask(f"<tool_call>{CALL}</tool_call>", max_tokens=50)
    message = whole(response)
    assert message["reason"] == "length"
    assert OSLO["arguments"].startswith(message["calls"][0]["arguments"])


@pytest.mark.parametrize(
    ("instructions", "form"),
    [
        ("<tool_call>", "hermes"),
        ('{"name": function name, "parameters": dictionary of', "llama3_json"),
        ("call by JSON: ", "json"),
    ],
)
@pytest.mark.parametrize(
    ("wishes", "is_forced", "may_repeat"),
    [
        ({"tool_choice": "required"}, True, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, True, False),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, False, False),
    ],
    ids=str,
)
async def test_promises_are_grammars(
    instructions: str, form: str, wishes: dict[str, Any], is_forced: bool, may_repeat: bool
) -> None:
    engine, response = await ask("x", ToolTokenizer(instructions), max_tokens=5, **wishes)
    assert response.status_code == 200, response.text
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    known = FORMATS[form]

    def written(call: str) -> str:
        call = call.replace('"arguments"', f'"{known.arguments_key}"')
        return f"{known.marker}\n{call}\n{known.end}" if known.marker else call

    two = known.separator.join((written(CALL), written(TICK)))
    assert accepts(grammar, written(CALL))
    assert accepts(grammar, written(TICK))
    assert not accepts(grammar, written(CALL.replace("Oslo", "Paris")))
    assert not accepts(grammar, written(CALL.replace("weather", "climate")))
    assert accepts(grammar, f"[{two}]" if known.is_list else two) == may_repeat
    assert accepts(grammar, "no call") != is_forced


async def test_a_named_function_is_called_once() -> None:
    wish = {"type": "function", "function": {"name": "clock"}}
    engine, _ = await ask("x", tool_choice=wish, max_tokens=5)
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    call = f"<tool_call>\n{TICK}\n</tool_call>"
    assert accepts(grammar, call)
    assert not accepts(grammar, f"{call}\n{call}")
    assert not accepts(grammar, f"<tool_call>\n{CALL}\n</tool_call>")


async def test_strict_binds_the_arguments_of_a_free_call() -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    engine, _ = await ask("x", tools=[strict], max_tokens=5)
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    call = f"Look: <tool_call>\n{CALL}\n</tool_call>\nthen"
    assert accepts(grammar, call)
    assert accepts(grammar, "no call at all")
    assert not accepts(grammar, call.replace("Oslo", "Bonn"))


async def test_none_hides_the_tools() -> None:
    answer = f"<tool_call>{CALL}</tool_call>"
    engine, response = await ask(answer, tool_choice="none", max_tokens=500)
    assert whole(response) == {"content": answer, "calls": [], "reason": "stop"}
    plain, _ = await ask(answer, tools=None, max_tokens=500)
    assert engine.requests[0].prompt_token_ids == plain.requests[0].prompt_token_ids


async def test_a_template_that_ignores_tools_refuses_them() -> None:
    engine, response = await ask("x", FakeTokenizer())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "template" in response.json()["error"]["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}
                ],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tools"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    for is_stream in (False, True):
        engine, response = await ask("x", stream=is_stream, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text
        assert engine.requests == []


async def test_tokenize_sees_the_tools_too() -> None:
    engine = FakeEngine(reply("x"), max_model_len=2048)
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}
    async with client_of(build(engine, tokenizer=ToolTokenizer())) as http:
        ids = (await http.post("/tokenize", json=body)).json()["tokens"]
        await http.post(PATH, json={"model": "fake/model", "max_tokens": 1, **body})
    assert tuple(ids) == engine.requests[0].prompt_token_ids


async def test_the_sdk_reads_calls() -> None:
    engine = FakeEngine(reply(f"<tool_call>{CALL}</tool_call>"), max_model_len=2048)
    async with client_of(build(engine, tokenizer=ToolTokenizer())) as http:
        sdk = AsyncOpenAI(base_url="http://server/v1", api_key="k", http_client=http)
        wishes: Any = {
            "model": "fake/model",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [WEATHER],
        }
        answer = await sdk.chat.completions.create(**wishes)
        call = answer.choices[0].message.tool_calls[0]
        async with sdk.chat.completions.stream(**wishes) as stream:
            final = await stream.get_final_completion()
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    streamed = final.choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    assert final.choices[0].finish_reason == "tool_calls"
