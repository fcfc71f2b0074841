"""What the engine says about a request: plain data made from its state."""

from collections.abc import Sequence

from engine.request import Request
from engine.spec.auto import Auto
from engine.types import EngineOutput, RequestTimes, SpecStats, TokenLogprob


def output_of(
    request: Request,
    token_ids: Sequence[int] = (),
    logprobs: Sequence[TokenLogprob] = (),
    *,
    is_first: bool = False,
) -> EngineOutput:
    """One output: what a step gave, and how the request ended, if it has."""
    wants = request.source.sampling
    has_ended = request.finish_reason is not None
    shows_prompt = wants.prompt_logprobs is not None and is_first
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=tuple(token_ids),
        logprobs=tuple(logprobs) if wants.logprobs is not None else None,
        prompt_logprobs=tuple(request.prompt_logprobs) if shows_prompt else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error,
        error_code=request.error_code,
        num_cached_tokens=request.num_cached_tokens,
        stats=request.stats + _prediction_stats(request) if has_ended else None,
        times=_times(request) if has_ended else None,
    )


def _times(request: Request) -> RequestTimes | None:
    if not request.scheduled_time:
        return None
    return RequestTimes(
        request.source.arrival_time,
        request.scheduled_time,
        request.first_token_time,
        request.last_token_time,
    )


def _prediction_stats(request: Request) -> SpecStats:
    """What became of the client's prediction, if one was given."""
    if not isinstance(request.drafter, Auto):
        return SpecStats()
    source = request.drafter.prediction
    if source is None:  # no prediction, or the request never ran
        return SpecStats(rejected_prediction_tokens=len(request.source.prediction_token_ids))
    return SpecStats(
        accepted_prediction_tokens=source.num_accepted,
        rejected_prediction_tokens=source.num_rejected,
    )
