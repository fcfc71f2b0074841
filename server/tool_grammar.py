"""Tool calls as grammars, in Lark's notation: what makes `required`, a named function, `strict` and
`parallel_tool_calls: false` promises instead of hopes."""

import json
from collections.abc import Sequence

from engine.text.grammars import JSON_OPTIONS
from server.schemas.tools import Tool
from server.tool_format import ToolFormat

_TEXT = r"/(.|\n)*/"


def forced_calls(form: ToolFormat, tools: Sequence[Tool], *, is_parallel: bool) -> str:
    """One call or, if `is_parallel`, any number from one on; nothing around them."""
    return "\n".join((f"start: {_calls(form, is_parallel)}", *_rules(form, tools)))


def free_calls(form: ToolFormat, tools: Sequence[Tool], *, is_parallel: bool) -> str:
    """Any text, but a call that begins in it is a complete one of these functions."""
    if form.marker:
        once = "begun"
        start = f"({once})* TEXT" if is_parallel else f"TEXT | {once}"
        lines = [
            f"start: {start}",
            f"head[lazy]: TEXT {json.dumps(form.marker)}",
            "begun: head body",
            f"TEXT: {_TEXT}",
        ]
        return "\n".join((*lines, *_rules(form, tools)))
    other = r"/[^{\[\s](.|\n)*/"  # what the parser would never take for a call
    return "\n".join((f'start: "" | {other} | {_calls(form, is_parallel)}', *_rules(form, tools)))


def _calls(form: ToolFormat, is_parallel: bool) -> str:
    call = f"{json.dumps(form.marker)} body" if form.marker else "body"
    if not is_parallel:
        return call
    several = f"{call} ({json.dumps(form.separator)} {call})*"
    return f'{call} | "[" {several} "]"' if form.is_list else several


def _rules(form: ToolFormat, tools: Sequence[Tool]) -> list[str]:
    """`body`: a call without its marker, and what it is made of."""
    before, after = ('"\\n"', f' "\\n" {json.dumps(form.end)}') if form.marker else ('""', "")
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    rules = [f"body: {before} ({names}){after}"]
    for index, tool in enumerate(tools):
        opening = f'{{"name": {json.dumps(tool.function.name)}, "{form.arguments_key}": '
        schema = {**tool.schema_of_arguments, "x-guidance": JSON_OPTIONS}
        rules.append(f'call_{index}: {json.dumps(opening)} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return rules
