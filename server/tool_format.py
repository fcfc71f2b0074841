"""How model families write a tool call in text: the registry of formats, and which a model uses.

A format says what stands around a call's JSON object. Grammars that enforce calls and the parser
that finds them read the same description.
"""

from dataclasses import dataclass

PROBE = "treeline_probe"  # a function's name that no template holds by itself


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`marker` begins each call and `end` closes it; without a marker the whole answer is a call,
    or several with `separator` between them, in brackets if `is_list`."""

    name: str
    arguments_key: str
    separator: str
    marker: str = ""
    end: str = ""
    is_list: bool = False


FORMATS = {
    known.name: known
    for known in (
        ToolFormat("hermes", "arguments", "\n", "<tool_call>", "</tool_call>"),
        ToolFormat("llama3_json", "parameters", "; "),
        ToolFormat("json", "arguments", ", ", is_list=True),
    )
}


def detect(rendered: str) -> ToolFormat:
    """The format that a template's own instructions ask for, told from a prompt with a tool."""
    if "<tool_call>" in rendered:
        return FORMATS["hermes"]
    if '"parameters": dictionary' in rendered:
        return FORMATS["llama3_json"]
    return FORMATS["json"]
