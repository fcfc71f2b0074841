"""Tool calls found in growing text: arguments stream while they are written, nothing is retracted.

Characters are read one by one, so the result does not depend on how the text arrives.
"""

from dataclasses import dataclass, field

from server.call_reader import CallReader
from server.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A call begins (`name`), or its arguments go on. `index`: which call of the message."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parsed:
    """What one push made certain."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class ToolParser:
    """Splits one message into its text and its calls.

    Text that only looks like the beginning of a call is given back as text. White space before a
    call, and between calls, belongs to no text.
    """

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._marker = form.marker or form.opening
        self._text = self._in_text if self._marker else self._as_it_is
        self._read = self._text if form.marker else self._at_start
        self._held = ""  # white space and part of a marker, which may not be text
        self._raw = ""  # the current call as written
        self._reader = CallReader()
        self._is_announced = False
        self.num_calls = 0

    def push(self, text: str) -> Parsed:
        """Take more text."""
        parsed = Parsed()
        for character in text:
            self._read(character, parsed)
        return parsed

    def flush(self) -> Parsed:
        """The end: what was held is text, unless a call was begun."""
        parsed = Parsed()
        if self._read == self._in_call and not self._is_announced:
            parsed.content += self._raw
        is_closing = self._read == self._behind
        if not is_closing and (self._held.strip() or not self.num_calls):
            parsed.content += self._held
        self._held = self._raw = ""
        return parsed

    def _in_text(self, character: str, parsed: Parsed) -> None:
        held = self._held + character
        body = held.lstrip()
        if self._marker == body and self._form.marker:
            self._begin(body if self.num_calls else held)
        elif self._marker == body:
            self._held = held.removesuffix(body)
            self._read = self._at_start
        elif self._marker.startswith(body):
            self._held = held
        elif self._marker.startswith(character) or character.isspace():
            parsed.content += held[:-1]
            self._held = character
        else:
            parsed.content += held
            self._held = ""

    def _at_start(self, character: str, parsed: Parsed) -> None:
        """Without a marker: a call opens the message, or what follows `opening`."""
        self._held += character
        if character.isspace() or (character == "[" and self._form.is_list and self._is_first):
            return
        if character == "{":
            raw, self._held = self._held, ""
            self._begin(raw)
            self._in_call(character, parsed, is_counted=True)
            return
        self._to_text(parsed)

    @property
    def _is_first(self) -> bool:
        return self._held.strip() == "["

    def _as_it_is(self, character: str, parsed: Parsed) -> None:
        parsed.content += character

    def _begin(self, raw: str) -> None:
        self._held, self._raw = "", raw
        self._reader = CallReader()
        self._is_announced = False
        self._read = self._in_call

    def _in_call(self, character: str, parsed: Parsed, *, is_counted: bool = False) -> None:
        if not is_counted:
            self._raw += character
        arguments = self._reader.feed(character)
        if self._reader.name is not None and not self._is_announced:
            self._is_announced = True
            self.num_calls += 1
            parsed.calls.append(CallDelta(self.num_calls - 1, self._reader.name, ""))
        if arguments:
            parsed.calls.append(CallDelta(self.num_calls - 1, None, arguments))
        if self._reader.is_done and (self._is_announced or not self._reader.is_bad):
            self._read = self._behind
        if self._reader.is_bad and not self._is_announced:
            parsed.content += self._raw
            self._read = self._text

    def _behind(self, character: str, parsed: Parsed) -> None:
        """Behind a call's object: its end, or what separates it from the next."""
        self._held += character
        tail = self._held.strip()
        if self._form.marker:
            if self._form.end == tail:
                self._held = ""
                self._read = self._in_text
            elif not self._form.end.startswith(tail):
                self._to_text(parsed)
        elif tail in ("", ";", ",", "]"):
            return
        elif character == "{" and tail[:-1].strip() in (";", ","):
            self._begin(self._held)
            self._in_call(character, parsed, is_counted=True)
        else:
            self._to_text(parsed)

    def _to_text(self, parsed: Parsed) -> None:
        """What was held is text."""
        held, self._held = self._held, ""
        self._read = self._text
        for character in held:
            self._read(character, parsed)
