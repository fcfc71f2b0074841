"""How model families write a tool call in text: the registry of formats, and which a model uses.

A format says what stands around a call's JSON object. Grammars that enforce calls and the parser
that finds them read the same description.
"""

from dataclasses import dataclass, replace

from server.text import TextCodec

PROBE = "treeline_probe"  # a function's name that no template holds by itself


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`marker` begins each call and `end` closes it; without a marker the whole answer is a call,
    or several with `separator` between them, in brackets if `is_list`. `opening` may stand before
    the first of these and is no text; where it stands, text may come before it.

    `control_tokens`: those of the three that are control tokens of the model, with their ids.
    """

    name: str
    arguments_key: str
    separator: str
    marker: str = ""
    end: str = ""
    is_list: bool = False
    opening: str = ""
    control_tokens: tuple[tuple[str, int], ...] = ()

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Control tokens that must stay in an answer's text for its calls to be found."""
        return tuple(token_id for _, token_id in self.control_tokens)

    def of_model(self, codec: TextCodec) -> "ToolFormat":
        """The format as a model with this tokenizer writes it."""
        known = []
        for name in filter(None, (self.marker, self.end, self.opening)):
            ids = codec.encode(name, False)
            if len(ids) == 1 and codec.is_special(ids[0]):
                known.append((name, ids[0]))
        has_opening = any(name == self.opening for name, _ in known)
        opening = self.opening if has_opening else ""
        return replace(self, opening=opening, control_tokens=tuple(known))


FORMATS = {
    known.name: known
    for known in (
        ToolFormat("hermes", "arguments", "\n", "<tool_call>", "</tool_call>"),
        ToolFormat("llama3_json", "parameters", "; ", opening="<|python_tag|>"),
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
