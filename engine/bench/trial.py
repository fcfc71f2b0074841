"""One group of prompts, decoded together by one arm: the smallest thing that is timed."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import SpecStats


@dataclass(frozen=True, slots=True)
class Trial:
    """What a group gave and what it took. Times include the prompts' own passes."""

    token_ids: tuple[tuple[int, ...], ...]  # per prompt
    stats: SpecStats  # of all its prompts
    seconds: float  # from adding the first request to the last token
    forward_seconds: float  # of that, inside forward passes
    num_steps: int  # engine steps; prompts that run together share them
    ttft_seconds: tuple[float, ...] = ()  # per prompt, from the group's begin
    predicted_tokens: float = 0.0  # what a priced method expected of the steps that it priced
    realised_tokens: int = 0  # what these steps gave


def median_trial(trials: Sequence[Trial]) -> Trial:
    """The trial of median time, so that all numbers of a row belong to runs that happened.

    Of an even number of trials, the faster one of the middle pair.
    """
    return sorted(trials, key=lambda trial: trial.seconds)[(len(trials) - 1) // 2]
