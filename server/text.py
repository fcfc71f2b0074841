"""What the HTTP side needs of a tokenizer, as protocols: tests bring a tiny one of their own."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.api import PLAIN_TEXT, TextRules
from engine.text.grammars import Grammars


class TextDecoder(Protocol):
    """Text of one growing token list, never retracted, never a split character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with `token_ids`."""
        ...

    def flush(self) -> str:
        """What was still held, at the end."""
        ...


class TextCodec(Protocol):
    """Text to ids and back. engine.text.tokenizer.Tokenizer is the real one."""

    def grammars(self, vocab_size: int, eos_token_ids: Sequence[int]) -> Grammars:
        """The grammar compiler for a model of this tokenizer, always the same object."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`."""
        ...

    def detokenizer(self, rules: TextRules = PLAIN_TEXT) -> TextDecoder:
        """A fresh incremental decoder."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The true bytes of one token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`. Raises RequestError with the template's own words."""
        ...
