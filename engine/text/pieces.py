"""The true bytes of every token: what makes text exact whatever tokens it was cut into.

A tokenizer's own `decode` works on whole texts. Streaming, log-probabilities and stop strings need
each token's share, so this reads the tokenizer's decoder once and keeps the rule it stands for:
byte-level BPE (every character of a token stands for one byte) or SentencePiece (`▁` is a space,
`<0x0A>` is a byte, and the text may lose leading spaces).
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.errors import ModelError


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    stand_ins = {chr(byte): byte for byte in printable}
    stand_ins.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return stand_ins


BYTE_OF_CHARACTER = _byte_level_alphabet()


class PieceTable:
    """Token id -> bytes. `concat(bytes_of(i) for i in ids)` is the text, but for a text's start:

    leading_spaces: how many spaces the decoder strips from the start of a text.
    bare_first: whether the first token of a text loses all its `▁` (Metaspace).
    """

    def __init__(self, backend: Backend) -> None:
        """Raises ModelError, naming the decoder, if it is of neither kind."""
        self.leading_spaces = 0
        self.bare_first = False
        self._backend = backend
        self._is_byte_level = False
        self._has_byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self._bytes: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(id_ for id_, token in added.items() if token.special)
        self._read_decoder()

    def is_special(self, token_id: int) -> bool:
        """Whether `token_id` is a control token, left out of plain text."""
        return token_id in self._special

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes within a text; empty for ids without a token (padded vocabularies)."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def first_bytes_of(self, token_id: int) -> bytes:
        """The token's bytes when it is the first of a text."""
        if not self.bare_first:
            return self.bytes_of(token_id)
        token = self._backend.id_to_token(token_id) or ""
        bare = self._replacements[0][0]
        return self.bytes_of(token_id) if bare not in token else token.replace(bare, "").encode()

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # an added token, kept in plain text
                return token.encode()
        if self._has_byte_fallback and len(token) == 6 and token.startswith("<0x"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()

    def _read_decoder(self) -> None:
        decoder = self._backend.decoder
        steps = list(_flatten(json.loads(decoder.__getstate__()))) if decoder else []
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            self._is_byte_level = True
            return
        is_fused = False
        for step in steps:
            match step["type"]:
                case "Replace" if "String" in step["pattern"] and not is_fused:
                    self._replacements.append((step["pattern"]["String"], step["content"]))
                case "Metaspace" if not self._replacements:
                    self._replacements.append((step["replacement"], " "))
                    self.bare_first = step["prepend_scheme"] != "never"
                case "ByteFallback":
                    self._has_byte_fallback = True
                case "Fuse":
                    is_fused = True
                case "Strip" if is_fused and step["content"] == " " and not step["stop"]:
                    self.leading_spaces = step["start"]
                case _:
                    raise ModelError(_refusal(kinds))
        if not self._replacements:
            raise ModelError(_refusal(kinds))


def _flatten(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _flatten(step)


def _refusal(kinds: list[str]) -> str:
    name = " + ".join(kinds) or "none"
    return f"The tokenizer's decoder ({name}) is neither byte-level BPE nor SentencePiece."
