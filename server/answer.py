"""An answer in the making: what streams and whole responses share, whatever the route's shape."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from engine.api import EngineOutput, SpecStats
from server.choice import Choice, ChoiceDelta
from server.job import Job
from server.logprobs import LogprobFormatter
from server.schemas.generation import GenerationRequest
from server.text import TextCodec


class Answer(ABC):
    """One job's response. Outputs are fed in; chunks or the body come out."""

    chunk_object: ClassVar[str]
    body_object: ClassVar[str]

    def __init__(
        self,
        body: GenerationRequest,
        job: Job,
        tokenizer: TextCodec,
        fingerprint: str,
        num_top: int | None,
    ) -> None:
        """`num_top`: alternatives to show with each token's log-probability."""
        self._request = body
        self._job = job
        self._fingerprint = fingerprint
        self._choices = [Choice(tokenizer, body, one.sampling.text) for one in job.requests]
        as_ids = body.return_tokens_as_token_ids
        self._formatter = LogprobFormatter(tokenizer, as_ids, num_top)
        self._num_open = len(job.requests)

    @property
    def is_done(self) -> bool:
        """Whether every choice has its end."""
        return self._num_open == 0

    def feed(self, index: int, output: EngineOutput) -> list[dict[str, Any]]:
        """Take an output of one choice. Returns the chunks that a stream sends for it. Raises
        ApiError if the engine gave the sequence up."""
        choice = self._choices[index]
        is_first = choice.is_new
        delta = choice.push(output)
        if delta.finish_reason is not None:
            self._num_open -= 1
        if not self._request.stream:
            return []
        chunks = self._chunks(index, delta, is_first)
        if self.is_done and not self._request.sends_usage:
            chunks[-1] |= self._extras()
        return chunks

    def tail(self) -> list[dict[str, Any]]:
        """The chunks behind the last choice's end."""
        if not self._request.sends_usage:
            return []
        chunk = self._frame(self.chunk_object, []) | self._extras()
        return [{**chunk, "usage": self._usage()}]

    def body(self) -> dict[str, Any]:
        """The whole response, once done."""
        body = self._frame(self.body_object, self._whole_choices()) | self._extras()
        return {**body, "usage": self._usage()}

    def facts(self) -> dict[str, Any]:
        """What the log says of the answer, whole or not. Times are the first choice's."""
        stats = sum((choice.stats for choice in self._choices), SpecStats())
        times = self._choices[0].times
        return {
            "response_id": self._job.response_id,
            "prompt_tokens": self._job.num_prompt_tokens,
            "cached_tokens": self._num_cached_tokens,
            "completion_tokens": sum(len(choice.token_ids) for choice in self._choices),
            "finish_reason": ",".join(choice.finish_reason or "none" for choice in self._choices),
            "method": self._job.method,
            "tau": round(stats.tau, 3) if stats.steps else None,
            "queue_seconds": round(times.scheduled - times.arrival, 4) if times else None,
            "ttft_seconds": round(times.first_token - times.arrival, 4) if times else None,
        }

    @property
    def _num_cached_tokens(self) -> int:
        """Of the prompts' tokens, each prompt once: those whose keys and values were kept from
        before. A prompt's further choices start from its first."""
        firsts = self._choices[:: self._job.num_candidates]
        return sum(choice.num_cached_tokens for choice in firsts)

    @abstractmethod
    def _chunks(self, index: int, delta: ChoiceDelta, is_first: bool) -> list[dict[str, Any]]:
        """The chunks of one delta, at least one if it ends the choice."""

    @abstractmethod
    def _whole_choices(self) -> list[dict[str, Any]]:
        """The choices of the body."""

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._frame(self.chunk_object, [choice])
        if self._request.sends_usage:
            chunk["usage"] = self._usage() if self._request.sends_usage_always else None
        return chunk

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._job.response_id,
            "object": kind,
            "created": self._job.created,
            "model": self._request.model,
            "choices": choices,
        }

    def _extras(self) -> dict[str, Any]:
        """What the body or the last chunk carries besides text."""
        extras: dict[str, Any] = {"system_fingerprint": self._fingerprint}
        if self._request.speculation.stats:
            extras["speculation"] = self._speculation()
        return extras

    def _usage(self) -> dict[str, Any]:
        """Each prompt once, the completions of all choices, committed tokens only. What became of
        a prediction is known at the end, and never counted among the completion's tokens."""
        prompt = self._job.num_prompt_tokens
        completion = sum(len(choice.token_ids) for choice in self._choices)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens},
        }
        if self._request.prediction is not None and self.is_done:
            stats = [choice.stats for choice in self._choices]
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": sum(s.accepted_prediction_tokens for s in stats),
                "rejected_prediction_tokens": sum(s.rejected_prediction_tokens for s in stats),
            }
        return usage

    def _speculation(self) -> dict[str, Any]:
        """Counters summed over choices, and the ratios that follow from them."""
        stats = sum((choice.stats for choice in self._choices), SpecStats())
        return {
            "method": self._job.method,
            "steps": stats.steps,
            "drafts": stats.drafts,
            "draft_tokens": stats.draft_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "tau": stats.tau,
            "hit_rate": stats.hit_rate,
            "accept_length": stats.accept_length,
            "accepted_per_depth": list(stats.accepted_per_depth),
            "exact": self._job.is_exact,
        }
