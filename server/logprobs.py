"""Log-probabilities in the two shapes that OpenAI has for them, with every token named uniquely."""

from collections.abc import Iterable
from typing import Any

from server.choice import TokenEntry
from server.text import TextCodec

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


class LogprobFormatter:
    """Names tokens and formats their log-probabilities."""

    def __init__(self, tokenizer: TextCodec, as_token_ids: bool, num_top: int | None) -> None:
        """`as_token_ids`: name tokens `token_id:5`. `num_top`: alternatives to show."""
        self._tokenizer = tokenizer
        self._as_token_ids = as_token_ids
        self._num_top = num_top or 0

    def name(self, token_id: int) -> str:
        """The token's text; `bytes:\\xf0\\x9f` if it is only a part of a character."""
        if self._as_token_ids:
            return f"token_id:{token_id}"
        spelling = self._tokenizer.token_bytes(token_id)
        try:
            return spelling.decode() or f"token_id:{token_id}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)

    def completion(self, entries: Iterable[TokenEntry]) -> dict[str, Any]:
        """Four parallel arrays."""
        shape: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry in entries:
            shape["tokens"].append(self.name(entry.token_id))
            shape["text_offset"].append(entry.offset)
            known = entry.logprob
            shape["token_logprobs"].append(None if known is None else finite(known.logprob))
            shape["top_logprobs"].append(None if known is None else self._alternatives(entry))
        return shape

    def chat(self, entries: Iterable[TokenEntry]) -> dict[str, Any]:
        """A list of tokens. The bytes of tokens that are not shown are empty, so that all bytes
        joined are the text."""
        content = []
        for entry in entries:
            assert entry.logprob is not None
            top = entry.logprob.top[: self._num_top]
            content.append(
                {
                    **self._chat_token(entry.token_id, entry.logprob.logprob, entry.is_shown),
                    "top_logprobs": [self._chat_token(i, value, True) for i, value in top],
                }
            )
        return {"content": content, "refusal": None}

    def _alternatives(self, entry: TokenEntry) -> dict[str, float]:
        """The best tokens and the chosen one, by name. A name that is taken gives way to the id."""
        assert entry.logprob is not None
        named: dict[str, float] = {}
        ids = set()
        candidates = [*entry.logprob.top[: self._num_top], (entry.token_id, entry.logprob.logprob)]
        for token_id, value in candidates:
            if token_id not in ids:
                ids.add(token_id)
                name = self.name(token_id)
                named[f"token_id:{token_id}" if name in named else name] = finite(value)
        return named

    def _chat_token(self, token_id: int, value: float, is_shown: bool) -> dict[str, Any]:
        spelling = self._tokenizer.token_bytes(token_id) if is_shown else b""
        return {"token": self.name(token_id), "logprob": finite(value), "bytes": list(spelling)}


def finite(value: float) -> float:
    """`value`, or the number that stands for minus infinity."""
    return max(value, LOWEST)
