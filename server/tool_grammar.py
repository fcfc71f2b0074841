"""Tool calls as grammars, in Lark's notation: what makes `required`, a named function, `strict` and
`parallel_tool_calls: false` promises instead of hopes."""

import json
from collections.abc import Sequence

from engine.text.grammars import JSON_OPTIONS
from server.schemas.tools import Tool
from server.tool_format import ToolFormat

_TEXT = r"/(.|\n)*/"
_NO_CALL = r"/[^{\[\s](.|\n)*/"  # what the parser would never take for a call


def forced_calls(form: ToolFormat, tools: Sequence[Tool], *, is_parallel: bool) -> str:
    """One call or, if `is_parallel`, any number from one on; no text around them."""
    opening = f"({_spelled(form, form.opening)})? " if form.opening else ""
    return "\n".join((f"start: {opening}({_calls(form, is_parallel)})", *_rules(form, tools)))


def free_calls(form: ToolFormat, tools: Sequence[Tool], *, is_parallel: bool) -> str:
    """Any text, but a call that begins in it is a complete one of these functions."""
    if form.marker:
        once = "head body"
        start = f"({once})* TEXT" if is_parallel else f"TEXT | {once}"
        lines = [f"start: {start}", *_head(form, form.marker), f"TEXT: {_TEXT}"]
        return "\n".join((*lines, *_rules(form, tools)))
    calls = f"({_calls(form, is_parallel)})"
    lines = [f'start: "" | TEXT | {calls}', f"TEXT: {_NO_CALL}"]
    if form.opening:
        lines[0] += f" | head {calls}"
        lines += _head(form, form.opening)
    return "\n".join((*lines, *_rules(form, tools)))


def _head(form: ToolFormat, marker: str) -> list[str]:
    """`head`: text up to a marker, be it a control token or spelled in plain characters, which the
    parser cannot tell from one."""
    is_control = marker in dict(form.control_tokens)
    control = f" | TEXT? {_spelled(form, marker)}" if is_control else ""
    return [f"head: spelled{control}", f"spelled[lazy]: TEXT? {json.dumps(marker)}"]


def _spelled(form: ToolFormat, marker: str) -> str:
    """A marker as the model writes it: control tokens are none of a grammar's characters."""
    token_id = dict(form.control_tokens).get(marker)
    return json.dumps(marker) if token_id is None else f"<[{token_id}]>"


def _calls(form: ToolFormat, is_parallel: bool) -> str:
    call = f"{_spelled(form, form.marker)} body" if form.marker else "body"
    if not is_parallel:
        return call
    several = f"{call} ({json.dumps(form.separator)} {call})*"
    return f'{call} | "[" {several} "]"' if form.is_list else several


def _rules(form: ToolFormat, tools: Sequence[Tool]) -> list[str]:
    """`body`: a call without its marker, and what it is made of."""
    before, after = ('"\\n"', f' "\\n" {_spelled(form, form.end)}') if form.marker else ('""', "")
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    rules = [f"body: {before} ({names}){after}"]
    for index, tool in enumerate(tools):
        opening = f'{{"name": {json.dumps(tool.function.name)}, "{form.arguments_key}": '
        schema = {**tool.schema_of_arguments, "x-guidance": JSON_OPTIONS}
        rules.append(f'call_{index}: {json.dumps(opening)} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return rules
