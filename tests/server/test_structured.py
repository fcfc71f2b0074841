"""Structured answers at the border: what is refused, and what the engine is asked."""

from typing import Any

import httpx
import pytest

from engine.text.grammars import GrammarError
from tests.server.conftest import build, client_of
from tests.server.fakes import VOCAB, FakeEngine, FakeTokenizer, reply
from tests.server.sse import events

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    named = {"name": "it", "schema": schema, **fields}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


async def ask(path: str, **fields: Any) -> tuple[FakeEngine, httpx.Response]:
    engine = FakeEngine(reply('{"a": 1}'))
    prompt: dict[str, Any] = {"prompt": "hi"}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "hi"}]}
    async with client_of(build(engine)) as http:
        body = {"model": "fake/model", **prompt, **fields}
        return engine, await http.post(path, json=body)


def accepts(grammar: str, text: str) -> bool:
    """Whether the grammar takes exactly this text."""
    matcher = FakeTokenizer().grammars(VOCAB, (256,)).matcher(grammar)
    try:
        for byte in text.encode():
            matcher.advance(byte)
    except GrammarError:
        return False
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("path", "fields", "good", "bad"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, '{"x": [1]}', "[1]"),
        (CHAT, json_schema(SCHEMA), '{"a": 1}', '{"a": "1"}'),
        (CHAT, json_schema({**SCHEMA, "description": None}), '{"a": 1}', "{}"),
        (CHAT, json_schema(SCHEMA, strict=True, description="d"), '{"a": 1}', '{"b": 1}'),
        (PLAIN, {"structured_outputs": {"json": SCHEMA}}, '{"a":1}', "{}"),
        (PLAIN, {"structured_outputs": {"regex": "a+b"}}, "aab", "ab "),
        (CHAT, {"structured_outputs": {"choice": ["x.", "yy"]}}, "x.", "xx"),
        (CHAT, {"structured_outputs": {"grammar": 'start: "q" "r"?'}}, "qr", "r"),
        (CHAT, {"structured_outputs": {"grammar": 'root ::= "q" "r"?'}}, "q", "r"),
    ],
)
async def test_the_engine_gets_the_grammar(
    path: str, fields: dict[str, Any], good: str, bad: str
) -> None:
    for is_stream in (False, True):
        for method in ("off", "goose"):
            wishes = {"stream": is_stream, "speculation": {"method": method}, **fields}
            engine, response = await ask(path, **wishes)
            assert response.status_code == 200, response.text
            (request,) = engine.requests
            grammar = request.sampling.grammar
            assert grammar is not None
            assert accepts(grammar, good)
            assert not accepts(grammar, bad)


async def test_free_text_has_no_grammar() -> None:
    engine, response = await ask(CHAT, response_format={"type": "text"}, structured_outputs=None)
    assert response.status_code == 200
    assert engine.requests[0].sampling.grammar is None


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PLAIN, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format.schema",
        ),
        (CHAT, json_schema({"type": 5}), "response_format.json_schema.schema"),
        (CHAT, json_schema({"$ref": "#/x"}), "response_format.json_schema.schema"),
        (CHAT, json_schema([]), "response_format.json_schema.schema"),
        (CHAT, json_schema(SCHEMA, name="a b"), "response_format.json_schema.name"),
        (CHAT, json_schema(SCHEMA, strict=1), "response_format.json_schema.strict"),
        (PLAIN, {"structured_outputs": {}}, "structured_outputs"),
        (PLAIN, {"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        (PLAIN, {"structured_outputs": {"json": "{}"}}, "structured_outputs.json"),
        (PLAIN, {"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json"),
        (PLAIN, {"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex"),
        (PLAIN, {"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        (PLAIN, {"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        (PLAIN, {"structured_outputs": {"choice": [""]}}, "structured_outputs"),
        (PLAIN, {"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        (PLAIN, {"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        (PLAIN, {"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        (PLAIN, {"structured_outputs": {"lark": "x"}}, "structured_outputs.lark"),
        (PLAIN, {"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        (
            CHAT,
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    for is_stream in (False, True):
        engine, response = await ask(path, stream=is_stream, **fields)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param, error
        assert engine.requests == []


@pytest.mark.parametrize(("depth", "status"), [(20, 200), (70, 400), (300, 400)])
async def test_the_depth_of_a_schema_is_bounded(depth: int, status: int) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    _, response = await ask(CHAT, **json_schema(schema))
    assert response.status_code == status, response.text


@pytest.mark.parametrize("path", [CHAT, PLAIN])
async def test_a_dead_end_is_no_fault_of_the_server(path: str) -> None:
    engine = FakeEngine(reply("abcdefgh"))
    wish: dict[str, Any] = {"model": "fake/model", "structured_outputs": {"regex": "[a-z]+"}}
    wish |= {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    async with client_of(build(engine)) as http:
        for is_stream in (False, True):
            engine.fail_next, engine.fail_code = "No token may follow.", "grammar_dead_end"
            response = await http.post(path, json={**wish, "stream": is_stream})
            assert response.status_code == (200 if is_stream else 422)
            body = events(response.text)[-1] if is_stream else response.json()
            assert body["error"] == {
                "message": "No token may follow.",
                "type": "invalid_request_error",
                "param": None,
                "code": "grammar_dead_end",
            }
        engine.fail_code = None
        assert (await http.post(path, json=wish)).status_code == 200
        metrics = (await http.get("/metrics")).text
    assert 'finished_reason="invalid",model_name="fake/model"} 2.0' in metrics
    assert 'finished_reason="error",model_name="fake/model"} 0.0' in metrics
