"""Tool calls whose markers are control tokens of the model: found, enforced, and never shown."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from engine.text.grammars import GrammarError, Grammars
from tests.server.conftest import build, client_of
from tests.server.fakes import BOS, EOS, VOCAB, FakeEngine, reply_ids
from tests.server.sse import events
from tests.server.test_tools import (
    CALL,
    CLOCK,
    NOW,
    OSLO,
    PATH,
    TICK,
    WEATHER,
    ToolTokenizer,
    assemble,
    whole,
)

CONTROL = {262: "<tool_call>", 263: "</tool_call>", 264: "<|python_tag|>"}
BEGIN, END, TAG = ([token_id] for token_id in CONTROL)
LLAMA = '{"name": function name, "parameters": dictionary of'
PARAMETERS = CALL.replace("arguments", "parameters")


class ControlTokenizer(ToolTokenizer):
    """Knows the markers as control tokens."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        for token_id, name in CONTROL.items():
            if name in text:
                before, _, behind = text.partition(name)
                return [*super().encode(before), token_id, *self.encode(behind)]
        return super().encode(text, add_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return CONTROL.get(token_id, "").encode() or super().token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in CONTROL or super().is_special(token_id)


async def ask(
    ids: Sequence[int], instructions: str = "<tool_call>", **fields: Any
) -> tuple[FakeEngine, httpx.Response]:
    engine = FakeEngine(reply_ids(*ids), max_model_len=2048)
    body = {"model": "fake/model", "messages": [{"role": "user", "content": "hi"}]}
    body |= {"tools": [WEATHER, CLOCK], "max_tokens": 500, **fields}
    app = build(engine, tokenizer=ControlTokenizer(instructions))
    async with client_of(app) as http:
        response = await http.post(PATH, json=body)
        assert response.status_code == 200, response.text
        return engine, response


def raw(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("instructions", "ids", "content", "calls"),
    [
        ("<tool_call>", [*BEGIN, *raw(f"\n{CALL}\n"), *END], None, [OSLO]),
        (
            "<tool_call>",
            [BOS, *raw("So."), *BEGIN, *raw(CALL), *END, BOS, *BEGIN, *raw(TICK), *END],
            "So.",
            [OSLO, NOW],
        ),
        (LLAMA, [*TAG, *raw(PARAMETERS)], None, [OSLO]),
        (LLAMA, [*raw("Wait. "), *TAG, *raw(PARAMETERS)], "Wait.", [OSLO]),
        (LLAMA, raw(PARAMETERS), None, [OSLO]),
        (LLAMA, [*TAG, BOS, *raw("search()")], "search()", []),
    ],
)
async def test_calls_are_found_and_control_tokens_hidden(
    instructions: str, ids: list[int], content: str | None, calls: list[Any]
) -> None:
    expected = {"content": content, "calls": calls, "reason": "tool_calls" if calls else "stop"}
    _, response = await ask(ids, instructions)
    assert whole(response) == expected
    _, streamed = await ask(ids, instructions, stream=True)
    assert assemble(events(streamed.text)) == expected


async def test_only_answers_with_tools_keep_them() -> None:
    ids = [*BEGIN, *raw("x"), *END]
    engine, response = await ask(ids, tool_choice="none")
    assert whole(response)["content"] == "x"
    assert engine.requests[0].sampling.text.kept_token_ids == ()
    engine, _ = await ask(ids)  # stop strings are searched in the same text
    assert engine.requests[0].sampling.text.kept_token_ids == (262, 263)


@pytest.mark.parametrize("instructions", ["<tool_call>", LLAMA])
async def test_enforced_calls_begin_with_the_control_token(instructions: str) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    forced, _ = await ask(raw("x"), instructions, tool_choice="required")
    free, _ = await ask(raw("x"), instructions, tools=[strict])
    compiler = Grammars(ControlTokenizer(), VOCAB, (EOS,))

    def accepts(engine: FakeEngine, ids: Sequence[int]) -> bool:
        grammar = engine.requests[0].sampling.grammar
        assert grammar is not None
        matcher = compiler.matcher(grammar)
        try:
            for token_id in ids:
                matcher.advance(token_id)
        except GrammarError:
            return False
        return matcher.is_accepting

    if instructions == LLAMA:
        good, before = [*TAG, *raw(PARAMETERS)], raw("Wait: ")
        spelled = raw(f"<|python_tag|>{PARAMETERS}")
        bad = [*TAG, *raw(PARAMETERS.replace("Oslo", "Bonn"))]
    else:
        good, before = [*BEGIN, *raw(f"\n{CALL}\n"), *END], raw("Wait: ")
        spelled = [*raw(f"<tool_call>\n{CALL}\n"), *END]
        bad = [*BEGIN, *raw("\n{}\n".format(CALL.replace("Oslo", "Bonn"))), *END]
    spelled_bad = raw(bytes(i for i in spelled if i < 256).decode().replace("Oslo", "Bonn"))
    spelled_bad += [i for i in spelled if i >= 256]
    assert accepts(forced, good)
    assert not accepts(forced, [*before, *good])
    assert not accepts(forced, bad)
    assert accepts(free, good)
    assert accepts(free, [*before, *good])
    assert accepts(free, raw("no call"))
    assert accepts(free, spelled)
    assert accepts(free, [*before, *spelled])
    assert not accepts(free, [*before, *bad])
    assert not accepts(free, spelled_bad)
    assert not accepts(free, [*before, *spelled_bad])
