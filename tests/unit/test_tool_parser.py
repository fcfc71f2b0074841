"""Tool calls in text: every format, every partition, nothing lost and nothing retracted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tool_format import FORMATS
from server.tool_parser import ToolParser

HERMES, LLAMA, PLAIN = (FORMATS[name] for name in ("hermes", "llama3_json", "json"))
ONE = '{"name": "f", "arguments": {"a": "}\\"{", "b": [1, {"c": null}]}}'
ARGUMENTS = '{"a": "}\\"{", "b": [1, {"c": null}]}'
TAG, CALL = "<|python_tag|>", '{"name": "f", "parameters": {}}'


def read(form, text: str, size: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the text given in blocks of `size` (0: whole)."""
    parser = ToolParser(form)
    size = size or len(text) or 1
    content, calls = "", []
    for part in [*(text[i : i + size] for i in range(0, len(text), size)), None]:
        parsed = parser.flush() if part is None else parser.push(part)
        content += parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append((delta.name, ""))
            name, arguments = calls[delta.index]
            calls[delta.index] = (name, arguments + delta.arguments)
    assert parser.num_calls == len(calls)
    return content, calls


CASES = [
    (HERMES, "plain text", "plain text", []),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", [("f", ARGUMENTS)]),
    (HERMES, f"Let me see.\n<tool_call>{ONE}</tool_call>", "Let me see.", [("f", ARGUMENTS)]),
    (
        HERMES,
        f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{ONE}\n</tool_call>\n",
        "",
        [("f", ARGUMENTS)] * 2,
    ),
    (HERMES, f"<tool_call>{ONE}</tool_call> then text", " then text", [("f", ARGUMENTS)]),
    (HERMES, "a <tool_ca", "a <tool_ca", []),
    (HERMES, "1 < 2 <<tool_cal", "1 < 2 <<tool_cal", []),
    (HERMES, "<tool_call>\nnot json</tool_call>", "<tool_call>\nnot json</tool_call>", []),
    (HERMES, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    (HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
    (HERMES, f"<tool_call>{ONE}\n</tool", "", [("f", ARGUMENTS)]),
    (HERMES, " \n", " \n", []),
    (LLAMA, '{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    (LLAMA, '{"name": "f", "parameters": {}}; {"name": "g"}', "", [("f", "{}"), ("g", "{}")]),
    (LLAMA, 'see {"name": "f", "parameters": {}}', 'see {"name": "f", "parameters": {}}', []),
    (LLAMA, '{"answer": 3}', '{"answer": 3}', []),
    (LLAMA, '[{"name": "f"}]', '[{"name": "f"}]', []),
    (LLAMA, f"{TAG}{CALL}; {CALL}", "", [("f", "{}")] * 2),
    (LLAMA, f"Wait.\n{TAG} {CALL}", "Wait.", [("f", "{}")]),
    (LLAMA, f"{CALL}{TAG}{CALL}", "", [("f", "{}")] * 2),
    (LLAMA, f"a\n{TAG}search()", "a\nsearch()", []),
    (LLAMA, "1 <<|python_t", "1 <<|python_t", []),
    (PLAIN, f"[{ONE}, {ONE}]", "", [("f", ARGUMENTS)] * 2),
    (PLAIN, f" {ONE}", "", [("f", ARGUMENTS)]),
    (PLAIN, "[1, 2]", "[1, 2]", []),
    (PLAIN, '{"arguments": {"a": 1}, "name": "f"}', "", [("f", '{"a": 1}')]),
    (PLAIN, '{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [("f", '{"a": 1}')]),
    (PLAIN, '{"name": 5, "arguments": {}}', '{"name": 5, "arguments": {}}', []),
    (PLAIN, "", "", []),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
@pytest.mark.parametrize("size", [0, 1, 3, 7])
def test_cases(form, text: str, content: str, calls: list, size: int) -> None:
    assert read(form, text, size) == (content, calls)


@given(st.sampled_from((HERMES, LLAMA, PLAIN)), st.data())
def test_partitions_do_not_matter(form, data) -> None:
    names = ["<tool_call>", "</tool_call>", TAG]
    pieces = [*names, ONE, '{"name":"g"', "}", "\n", ";", ",", "[", "x", "<"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    size = data.draw(st.integers(1, 9))
    assert read(form, text, size) == read(form, text)


@given(st.text(max_size=40))
def test_text_without_a_call_comes_back_whole(text: str) -> None:
    for form in (HERMES, LLAMA, PLAIN):
        content, calls = read(form, text)
        if not calls:
            assert content == text


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.text(max_size=5), st.lists))
)
def test_arguments_come_back_as_they_were_written(arguments: dict) -> None:
    written = json.dumps(arguments)
    text = f'{{"name": "f", "arguments": {written}}}'
    assert read(HERMES, f"<tool_call>\n{text}\n</tool_call>", 2) == ("", [("f", written)])
    assert read(PLAIN, text, 2) == ("", [("f", written)])
