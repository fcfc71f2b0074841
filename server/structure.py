"""From what a body demands of an answer to the grammar that enforces it, or a 400 that says why."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from engine.api import EngineInfo, RequestError
from engine.text.grammars import Grammars
from server.errors import ApiError, bad_request
from server.schemas.chat import ChatRequest
from server.schemas.generation import GenerationRequest
from server.schemas.tools import NamedTool, Tool
from server.text import TextCodec
from server.tool_format import FORMATS, PROBE, ToolFormat, detect
from server.tool_grammar import forced_calls, free_calls

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": PROBE, "description": "", "parameters": {"type": "object"}},
}


class Structure:
    """One model's grammars and tool calls."""

    def __init__(
        self, tokenizer: TextCodec, info: EngineInfo, template: str | None, tool_parser: str
    ) -> None:
        """`tool_parser`: a format's name, or `auto` for the one that the template asks for."""
        self._tokenizer = tokenizer
        self._info = info
        self._template = template
        self._tool_parser = tool_parser

    @property
    def _grammars(self) -> Grammars:
        return self._tokenizer.grammars(self._info.vocab_size, self._info.eos_token_ids)

    @cached_property
    def _own_format(self) -> ToolFormat | None:
        """How this model writes calls; None if its template shows no tools to it."""
        message = [{"role": "user", "content": "x"}]
        try:
            text = self._tokenizer.render_chat(
                message, tools=[_PROBE_TOOL], template=self._template
            )
        except RequestError:
            return None
        if PROBE not in text:
            return None
        form = detect(text) if self._tool_parser == "auto" else FORMATS[self._tool_parser]
        return form.of_model(self._tokenizer)

    def tool_format(self, body: ChatRequest) -> ToolFormat | None:
        """How calls are written in the answer; None if there can be none. Raises ApiError where the
        fields about tools contradict each other or the model's template ignores tools."""
        if not body.tools:
            for field in ("tool_choice", "parallel_tool_calls"):
                if getattr(body, field) not in (None, "none"):
                    raise bad_request(f"'{field}' needs 'tools'.", field)
            return None
        choice = body.tool_choice
        names = [tool.function.name for tool in body.tools]
        if isinstance(choice, NamedTool) and choice.name not in names:
            raise bad_request(f"'tools' has no function {choice.name!r:.80}.", "tool_choice")
        if self._own_format is None:
            message = "The chat template of this model does not show tools to it."
            raise bad_request(message, "tools", "unsupported_parameter")
        return None if choice == "none" else self._own_format

    def grammar(self, body: GenerationRequest) -> str | None:
        """The grammar of the whole answer, if one is asked for. Raises ApiError naming the field
        whose schema, expression or grammar cannot be compiled."""
        found: list[tuple[str, str]] = []
        wish = body.structured_outputs
        if wish is not None:
            found.append(("structured_outputs", self._structured(body)))
        if isinstance(body, ChatRequest):
            found += self._formatted(body)
            found += self._called(body)
        if not found:
            return None
        if len(found) > 1:
            fields = f"'{found[0][0]}' and '{found[1][0]}'"
            raise bad_request(f"{fields} cannot be combined.", found[1][0])
        if body.ignore_eos:
            message = (
                f"'ignore_eos' cannot be combined with '{found[0][0]}': the answer has an end."
            )
            raise bad_request(message, "ignore_eos")
        return found[0][1]

    def _structured(self, body: GenerationRequest) -> str:
        wish, grammars = body.structured_outputs, self._grammars
        assert wish is not None
        if wish.json_schema is not None:
            return _compiled(grammars.json_schema, wish.json_schema, "structured_outputs.json")
        if wish.regex is not None:
            return _compiled(grammars.regex, wish.regex, "structured_outputs.regex")
        if wish.choice is not None:
            return _compiled(grammars.choice, wish.choice, "structured_outputs.choice")
        return _compiled(grammars.notation, wish.grammar, "structured_outputs.grammar")

    def _formatted(self, body: ChatRequest) -> list[tuple[str, str]]:
        wish = body.response_format
        if wish.type == "text":
            return []
        schema: Mapping[str, Any] = {"type": "object"}
        if wish.json_schema is not None:
            schema = wish.json_schema.json_schema
        param = "response_format.json_schema.schema"
        return [("response_format", _compiled(self._grammars.json_schema, schema, param))]

    def _called(self, body: ChatRequest) -> list[tuple[str, str]]:
        form, choice = self.tool_format(body), body.tool_choice
        if form is None:
            return []
        tools = body.tools
        is_parallel = body.parallel_tool_calls is not False
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool.function.name == choice.name]
            is_parallel = False
        is_forced = isinstance(choice, NamedTool) or choice == "required"
        is_strict = any(tool.function.strict for tool in tools)
        if not (is_forced or is_strict or not is_parallel):
            return []
        for index, tool in enumerate(body.tools):
            param = f"tools[{index}].function.parameters"
            _compiled(self._grammars.json_schema, tool.schema_of_arguments, param)
        build = forced_calls if is_forced else free_calls
        source = build(form, tools, is_parallel=is_parallel)
        return [("tools", _compiled(self._grammars.lark, source, "tools"))]


def shown_tools(body: ChatRequest) -> list[Tool]:
    """The tools that the prompt speaks of: none where none may be called."""
    return [] if body.tool_choice == "none" else body.tools


def _compiled(compile_: Callable[[Any], str], source: object, param: str) -> str:
    try:
        return compile_(source)
    except RequestError as error:
        raise _refused(error, param) from error


def _refused(error: RequestError, param: str) -> ApiError:
    return bad_request(f"Invalid '{param}': {error}", param, error.code or "invalid_value")
