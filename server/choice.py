"""One choice's text as it grows: detokenised, held back where a stop string may begin, never
retracted. Streams and whole answers read the same object, so their texts and counts are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import EngineOutput, FinishReason, RequestTimes, SpecStats, TextRules, TokenLogprob
from engine.text.stop import StopFilter
from server.errors import internal_error, unavailable, unfulfillable
from server.schemas.generation import GenerationRequest
from server.text import TextCodec


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token with its log-probabilities. `offset`: code points of text before its character;
    `is_shown`: whether the token is part of the text at all."""

    token_id: int
    logprob: TokenLogprob | None
    offset: int
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one output added to a choice."""

    text: str
    token_ids: tuple[int, ...]
    entries: tuple[TokenEntry, ...]  # one per token, if log-probabilities were asked for
    finish_reason: str | None
    stop_reason: int | str | None

    @property
    def stop_reason_field(self) -> dict[str, int | str]:
        """The stop string or stop token id that ended the choice, as an extra field of it."""
        return {} if self.stop_reason is None else {"stop_reason": self.stop_reason}


class Choice:
    """The state of one sequence on its way to the client."""

    def __init__(self, tokenizer: TextCodec, body: GenerationRequest, rules: TextRules) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._detokenizer = tokenizer.detokenizer(rules)
        self._shows_end = body.include_stop_str_in_output
        self._filter = StopFilter(body.stop, self._shows_end)
        self._length = 0  # code points before any cut at a stop string
        self._texts: list[str] = []
        self._end: ChoiceDelta | None = None
        self.entries: list[TokenEntry] = []
        self.token_ids: list[int] = []
        self.prompt_logprobs: Sequence[TokenLogprob | None] | None = None
        self.stats = SpecStats()
        self.times: RequestTimes | None = None
        self.num_cached_tokens = 0
        self.is_new = True  # nothing has come yet

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def end(self) -> ChoiceDelta:
        """The last delta, once it has come."""
        assert self._end is not None
        return self._end

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, if it has."""
        return None if self._end is None else self._end.finish_reason

    @property
    def mean_logprob(self) -> float:
        """How likely the model found its tokens, per token."""
        values = [entry.logprob.logprob for entry in self.entries if entry.logprob is not None]
        return sum(values) / len(values) if values else 0.0

    def push(self, output: EngineOutput) -> ChoiceDelta:
        """Take the next output. Raises ApiError if the engine gave the sequence up."""
        reason = output.finish_reason
        if reason is FinishReason.INVALID:
            raise unfulfillable(output.error or "", output.error_code)
        if reason is FinishReason.OVERLOAD:
            raise unavailable("There is no memory for this request now.")
        if reason is FinishReason.ERROR:
            raise internal_error(output.request_id)
        if reason is FinishReason.ABORT:
            raise unavailable("The server is shutting down.")
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.stats is not None:
            self.stats = output.stats
        self.times = output.times
        self.num_cached_tokens = output.num_cached_tokens
        text, entries = self._decode(output)
        if reason is not None:
            text += self._detokenizer.flush()
        safe, match = self._filter.push(text)
        if reason is not None and match is None:
            safe += self._filter.flush()
        delta = ChoiceDelta(safe, output.new_token_ids, entries, reason, output.stop_reason)
        self._record(delta)
        return delta

    def _record(self, delta: ChoiceDelta) -> None:
        self.is_new = False
        self._texts.append(delta.text)
        self.entries.extend(delta.entries)
        self.token_ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._end = delta

    def _decode(self, output: EngineOutput) -> tuple[str, tuple[TokenEntry, ...]]:
        """The text of an output's tokens. A token that only ends the sequence has none."""
        shown = output.new_token_ids
        if (
            output.finish_reason is FinishReason.STOP
            and not isinstance(output.stop_reason, str)
            and not self._shows_end
        ):
            shown = shown[:-1]
        if output.logprobs is None:
            return self._detokenizer.push(shown), ()
        text, entries = "", []
        for position, logprob in enumerate(output.logprobs):
            token_id, offset = logprob.token_id, self._length
            is_shown = position < len(shown) and self._rules.shows(
                token_id, self._tokenizer.is_special(token_id)
            )
            if is_shown:
                piece = self._detokenizer.push([token_id])
                self._length += len(piece)
                text += piece
            entries.append(TokenEntry(token_id, logprob, offset, is_shown))
        return text, tuple(entries)
