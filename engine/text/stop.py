"""Stop strings: found in text, not in tokens, and never shown in part.

The engine needs the token that completes a stop string, the server needs the text before it. Both
run the same automaton over the same text, so they always agree, whatever blocks the text comes in.
"""

from engine.text.tokenizer import Tokenizer
from engine.types import PLAIN_TEXT, TextRules


class StopFilter:
    """Passes text on, holding back whatever may still become a stop string.

    The match that is completed first wins; of two completed by the same character, the longer.
    Hence the result does not depend on how the text is partitioned. O(1) amortised per character
    and stop string (Knuth, Morris, Pratt 1977).
    """

    def __init__(self, stops: tuple[str, ...], include_stop: bool = False) -> None:
        """`stops`: none empty. `include_stop`: whether the safe text ends with the match."""
        if "" in stops:
            raise ValueError("a stop string cannot be empty")
        self._includes_stop = include_stop
        self._needles = [_Needle(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._held = ""
        self._match: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text safe to show, the stop string matched or None). Text after a match is dropped."""
        if self._match is not None:
            return "", self._match
        if not self._needles:
            return text, None
        window = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            for needle in self._needles:
                if needle.feed(character):
                    return self._finish(window, end, needle.text)
        held = max(needle.matched for needle in self._needles)
        self._held = window[len(window) - held :]
        return window[: len(window) - held], None

    def flush(self) -> str:
        """The held text, at the end of a stream that matched no stop string."""
        held, self._held = self._held, ""
        for needle in self._needles:
            needle.matched = 0
        return held

    def _finish(self, window: str, end: int, stop: str) -> tuple[str, str]:
        self._match, self._held = stop, ""
        return window[: end if self._includes_stop else end - len(stop)], stop


class StopScanner:
    """Tells, token by token, when the text of a request completes a stop string."""

    def __init__(
        self, tokenizer: Tokenizer, stops: tuple[str, ...], rules: TextRules = PLAIN_TEXT
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(rules)
        self._filter = StopFilter(stops)

    def push(self, token_id: int) -> str | None:
        """The stop string that this token completes, or None."""
        return self._filter.push(self._detokenizer.push((token_id,)))[1]


class _Needle:
    """One stop string and how much of it the text so far ends with."""

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def feed(self, character: str) -> bool:
        """Take one more character; True if it completes the stop string."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._borders[self.matched]
        if self.text[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.text)


def _borders(text: str) -> list[int]:
    """[n] -> length of the longest proper prefix of text[:n] that is also its suffix."""
    borders = [0, 0]
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border]
        borders.append(border + (text[border] == character))
    return borders
