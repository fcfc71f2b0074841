"""Incremental detokenizer: tokens in, final text out, whatever blocks the tokens arrive in.

A step commits several tokens at once and may end inside a character. Text that was handed out is
never taken back, so bytes wait here until they form a whole code point.
"""

import codecs
from collections.abc import Sequence

from engine.text.pieces import PieceTable
from engine.types import PLAIN_TEXT, TextRules


class Detokenizer:
    """Text of one growing token list; O(1) amortised per token.

    Law: for any partition of `ids` into blocks, the pushes' results and the flush joined are
    `Tokenizer.decode(ids)`; with `continues_text`, what they add to the text of whatever tokens
    stand before. Invalid UTF-8 becomes U+FFFD, one per maximal invalid part (as the
    Unicode standard recommends), so an invalid byte never spoils its valid neighbours.
    """

    def __init__(self, pieces: PieceTable, rules: TextRules = PLAIN_TEXT) -> None:
        self._pieces = pieces
        self._rules = rules
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = not rules.continues_text
        self._spaces_to_strip = pieces.leading_spaces if self._is_first else 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with `token_ids`: whole code points, possibly none."""
        pieces, rules = self._pieces, self._rules
        chunks = []
        for token_id in token_ids:
            if not rules.shows(token_id, pieces.is_special(token_id)):
                continue
            if self._is_first:
                self._is_first = False
                chunks.append(pieces.first_bytes_of(token_id))
            else:
                chunks.append(pieces.bytes_of(token_id))
        return self._strip(self._utf8.decode(b"".join(chunks)))

    def flush(self) -> str:
        """The end of the text: an unfinished character as U+FFFD, else nothing."""
        return self._strip(self._utf8.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if not text.startswith(" "):
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text
