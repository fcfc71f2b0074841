"""One choice's text as it grows: detokenised, held back where a stop string may begin, never
retracted. Streams and whole answers read the same object, so their texts and counts are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.text.stop import StopFilter
from engine.types import EngineOutput, FinishReason, SpecStats
from server.errors import internal_error, unavailable
from server.text import TextCodec


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one output added to a choice."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stop_reason: int | str | None


class Choice:
    """The state of one sequence on its way to the client."""

    def __init__(self, tokenizer: TextCodec, stops: Sequence[str]) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._filter = StopFilter(tuple(stops))
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stats = SpecStats()

    def push(self, output: EngineOutput) -> ChoiceDelta:
        """Take the next output. Raises ApiError if the engine gave the sequence up."""
        self.num_tokens += len(output.new_token_ids)
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.finish_reason = reason = output.finish_reason
        if reason is FinishReason.ERROR:
            raise internal_error(output.request_id)
        if reason is FinishReason.ABORT:
            raise unavailable("The server is shutting down.")
        if output.stats is not None:
            self.stats = output.stats
        text = self._text(output)
        return ChoiceDelta(text, output.new_token_ids, reason, output.stop_reason)

    def _text(self, output: EngineOutput) -> str:
        """The text that is safe to show. A token that only ends the sequence has none."""
        is_last = output.finish_reason is not None
        ends_by_token = output.finish_reason is FinishReason.STOP and not isinstance(
            output.stop_reason, str
        )
        visible = output.new_token_ids[:-1] if ends_by_token else output.new_token_ids
        text = self._detokenizer.push(visible)
        if is_last:
            text += self._detokenizer.flush()
        safe, match = self._filter.push(text)
        return safe + self._filter.flush() if is_last and match is None else safe
