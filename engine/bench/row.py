"""One line of the result: an arm on a suite, in the terms of ARCHITECTURE.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.arm import Arm
from engine.bench.trial import Trial, median_trial
from engine.types import SpecStats


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one set of bounds on one suite."""

    suite: str
    method: str  # with its swept bounds, if any
    prompts: int
    tokens: int
    steps: int
    tau: float
    hit_rate: float
    accept_length: float
    draft_nodes: float  # exploration nodes per step
    verify_nodes: float  # candidate nodes per step
    tokens_per_second: float  # of all streams together
    speedup: float  # over plain decoding, same prompts, same session
    host_ms_per_step: float  # of an engine step, outside the forward pass
    identical: int  # prompts whose tokens equal plain decoding's, in every run
    forward_ms_per_step: float
    predicted: float | None  # expected over realised tokens per step, of methods that predict
    width: int  # the bounds that a request with this row's settings is held to
    depth: int
    budget: int


def summarise(
    suite: str, arm: Arm, groups: Sequence[Sequence[Trial]], reference: Sequence[Sequence[Trial]]
) -> Row:
    """The row of `arm`. `groups[i]` holds the repeated trials of the i-th group of prompts,
    `reference[i]` those of plain decoding."""
    medians = [median_trial(trials) for trials in groups]
    plain = [median_trial(trials) for trials in reference]
    stats = sum((trial.stats for trial in medians), SpecStats())
    seconds = sum(trial.seconds for trial in medians)
    forward = sum(trial.forward_seconds for trial in medians)
    num_steps = sum(trial.num_steps for trial in medians)
    plain_rate = sum(t.stats.tokens for t in plain) / sum(t.seconds for t in plain)
    realised = sum(trial.realised_tokens for trial in medians)
    predicted = sum(trial.predicted_tokens for trial in medians)
    return Row(
        suite=suite,
        method=arm.label,
        prompts=sum(len(trial.token_ids) for trial in medians),
        tokens=stats.tokens,
        steps=stats.steps,
        tau=stats.tau,
        hit_rate=stats.hit_rate,
        accept_length=stats.accept_length,
        draft_nodes=stats.explored_tokens / stats.steps,
        verify_nodes=stats.draft_tokens / stats.steps,
        tokens_per_second=stats.tokens / seconds,
        speedup=stats.tokens / seconds / plain_rate,
        host_ms_per_step=1e3 * (seconds - forward) / num_steps,
        identical=sum(map(_num_identical, groups, plain)),
        forward_ms_per_step=1e3 * forward / num_steps,
        predicted=predicted / realised if realised else None,
        width=arm.plan.width,
        depth=arm.plan.depth,
        budget=arm.plan.budget,
    )


def _num_identical(trials: Sequence[Trial], plain: Trial) -> int:
    return sum(
        all(trial.token_ids[prompt] == token_ids for trial in trials)
        for prompt, token_ids in enumerate(plain.token_ids)
    )
