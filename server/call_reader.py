"""One tool call's JSON object, read by character, its arguments passed on as they come."""

import json
from collections.abc import Callable

_ARGUMENTS = ("arguments", "parameters")


class CallReader:
    """Reads `{"name": ..., "arguments": {...}}` in any order of keys.

    `name` is set once known. Arguments that are written before it wait for it. An object without
    a name, or one that is no JSON, is bad.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_done = False
        self.is_bad = False
        self._state: Callable[[str], str] = self._start
        self._key = ""
        self._value = ""
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._waiting = ""  # arguments that have come before the name
        self._has_arguments = False

    def feed(self, character: str) -> str:
        """Take one character; returns what it adds to the arguments. Ignores all once done."""
        return "" if self.is_done else self._state(character)

    def _start(self, character: str) -> str:
        if character == "{":
            self._state = self._before_key
        elif not character.isspace():
            self._fail()
        return ""

    def _before_key(self, character: str) -> str:
        if character == '"':
            self._value = character
            self._in_string = True
            self._state = self._in_key
        elif character == "}":
            return self._finish()
        elif not character.isspace() and character != ",":
            self._fail()
        return ""

    def _in_key(self, character: str) -> str:
        self._value += character
        if self._closes_string(character):
            self._key = str(self._decode())
            self._state = self._colon
        return ""

    def _colon(self, character: str) -> str:
        if character == ":":
            self._value, self._depth = "", 0
            self._state = self._in_value
        elif not character.isspace():
            self._fail()
        return ""

    def _in_value(self, character: str) -> str:
        if not self._value and character.isspace():
            return ""
        is_scalar = bool(self._value) and not self._in_string and self._depth == 0
        if is_scalar and (character in ",}" or character.isspace()):
            return self._end_value() + self._after(character)
        self._value += character
        is_closed = False
        if self._in_string:
            is_closed = self._closes_string(character) and self._depth == 0
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            is_closed = self._depth == 0
            if self._depth < 0:
                self._fail()
                return ""
        passed = self._pass_on(character)
        return passed + self._end_value() if is_closed else passed

    def _pass_on(self, character: str) -> str:
        """An object's characters at once; a string is decoded when it is whole."""
        if self._key not in _ARGUMENTS or self._has_arguments or not self._value.startswith("{"):
            return ""
        return self._emit(character)

    def _emit(self, text: str) -> str:
        if self.name is None:
            self._waiting += text
            return ""
        return text

    def _end_value(self) -> str:
        self._state = self._after
        is_object = self._value.startswith("{")
        if self._key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            if is_object:
                return ""
            value = self._decode()
            if isinstance(value, str):  # arguments as JSON inside a string
                return self._emit(value)
            self._fail()
            return ""
        value = self._decode() if self._key == "name" else None
        if self._key != "name" or self.name is not None:
            return ""
        if not isinstance(value, str) or not value:
            self._fail()
            return ""
        self.name = value
        waiting, self._waiting = self._waiting, ""
        return waiting

    def _after(self, character: str) -> str:
        if self.is_done:
            return ""
        if character == ",":
            self._state = self._before_key
        elif character == "}":
            return self._finish()
        elif not character.isspace():
            self._fail()
        return ""

    def _finish(self) -> str:
        self.is_done = True
        self.is_bad = self.name is None
        return "" if self._has_arguments or self.is_bad else "{}"

    def _fail(self) -> None:
        self.is_bad = self.is_done = True

    def _closes_string(self, character: str) -> bool:
        """Whether this character of a string is its closing quote."""
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            return True
        return False

    def _decode(self) -> object:
        try:
            return json.loads(self._value)
        except ValueError:
            self._fail()
            return None
