"""An answer in the making: what streams and whole responses need of each route's shape."""

from collections.abc import Sequence
from typing import Any, Protocol

from engine.types import EngineOutput, SpecStats
from server.choice import Choice
from server.job import Job


class Answer(Protocol):
    """One job's response. Outputs are fed in; chunks or the body come out."""

    @property
    def is_done(self) -> bool:
        """Whether every choice has its end."""
        ...

    def feed(self, index: int, output: EngineOutput) -> list[dict[str, Any]]:
        """Take an output of one choice. Returns the chunks that a stream sends for it."""
        ...

    def tail(self) -> list[dict[str, Any]]:
        """The chunks behind the last choice's end."""
        ...

    def body(self) -> dict[str, Any]:
        """The whole response, once done."""
        ...


def usage(job: Job, choices: Sequence[Choice]) -> dict[str, int]:
    """Token counts: each prompt once, the completions of all choices, committed tokens only."""
    prompt, completion = job.num_prompt_tokens, sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def speculation_stats(job: Job, choices: Sequence[Choice]) -> dict[str, Any]:
    """The `speculation` object: counters summed over choices, and the ratios that follow."""
    stats = sum((choice.stats for choice in choices), SpecStats())
    return {
        "method": job.method,
        "steps": stats.steps,
        "drafts": stats.drafts,
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "tau": stats.tau,
        "hit_rate": stats.hit_rate,
        "accept_length": stats.accept_length,
        "accepted_per_depth": list(stats.accepted_per_depth),
    }
