"""Splits real decoding steps into their parts, for profile_step.py."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import engine.core
from engine.core import EngineCore
from engine.drafting import StepDrafts
from engine.model.fused_decoder import FusedDecoders
from engine.model.fused_model import FusedModel
from engine.model.kv_cache import KvCache
from engine.model.native_attention import NativeStep
from engine.model.runner import ModelRunner
from engine.model.sdpa_attention import SdpaStep
from engine.spec.drafter import DraftLimits
from engine.spec.goose import Goose
from engine.spec.tree import TokenTree
from engine.types import EngineRequest, SamplingParams, StepOutputs

FORWARD = ("layers", "linear", "attention", "norm", "other")  # layers: all in one call
PARTS = ("draft", "pack", *FORWARD, "top-k", "walk", "commit", "learn", "rest")
_MARK = "treeline "
_WARM_UP_STEPS = 3


class FilledGoose(Goose):
    """Goose, filled up to its budget with children of the anchor that will not be accepted."""

    def draft(self, limits: DraftLimits) -> TokenTree:
        """Exactly `limits.budget` nodes."""
        tree = super().draft(limits)
        token = 0
        while len(tree) <= limits.budget:
            tree.add(0, token)
            token += 1
        return tree


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds per step at one number of rows."""

    rows: int
    step_ms: float
    parts: dict[str, float]


@contextmanager
def marked(runner: ModelRunner) -> Iterator[None]:
    """Name the parts of a step to the profiler while this is open."""
    places: list[tuple[Any, str, str]] = [
        (StepDrafts, "draft", "draft"),
        (engine.core, "verify", "walk"),
        (FilledGoose, "observe", "learn"),
        (KvCache, "move", "commit"),
        (ModelRunner, "_forward", "packed forward"),
        (ModelRunner, "_best", "top-k"),
        (FusedModel, "__call__", "forward"),
        (FusedDecoders, "run", "layers"),
        (NativeStep, "attend", "attention"),
        (SdpaStep, "attend", "attention"),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, part in places:
        setattr(owner, name, _named(part, getattr(owner, name)))
    hooks = [hook for module in runner._model.modules() for hook in _hooks(module, runner._model)]
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        for hook in hooks:
            hook.remove()


def _named(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with record_function(_MARK + part):
            return function(*arguments, **named)

    return call


def _hooks(module: nn.Module, model: nn.Module) -> Iterator[Any]:
    kind = type(module).__name__
    part = "linear" if "Linear" in kind else "norm" if "Norm" in kind else None
    if module is model:
        part = "forward"
    if part is None:
        return
    ranges: list[Any] = []

    def begin(*_: Any) -> None:
        ranges.append(record_function(_MARK + part))
        ranges[-1].__enter__()

    def end(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    yield module.register_forward_pre_hook(begin)
    yield module.register_forward_hook(end)


def split_step(seconds: Mapping[str, float], step: float) -> dict[str, float]:
    """Marked seconds, some inside others, as disjoint PARTS that sum up to `step`."""
    get = seconds.get
    parts = {part: get(part, 0.0) for part in PARTS}
    parts["pack"] = get("packed forward", 0.0) - get("forward", 0.0)
    parts["other"] = get("forward", 0.0) - sum(parts[p] for p in FORWARD[:-1])
    parts["rest"] = step - sum(parts[part] for part in PARTS if part != "rest")
    return parts


def profile_rows(core: EngineCore, prompt: Sequence[int], rows: int, steps: int) -> Split:
    """Steps of one request whose trees have `rows` rows, without and under the profiler."""
    with _request(core, prompt, rows, steps):
        plain = statistics.median(_timed(core) for _ in range(steps))
    with _request(core, prompt, rows, steps), marked(core._runner):
        _timed(core)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            slow = sum(_timed(core) for _ in range(steps)) / steps
    seconds = {
        event.key.removeprefix(_MARK): event.cpu_time_total / 1e6 / steps
        for event in profiler.key_averages()
        if event.key.startswith(_MARK)
    }
    scale = 1e3 * plain / slow
    parts = {part: scale * value for part, value in split_step(seconds, slow).items()}
    return Split(rows, 1e3 * plain, parts)


@contextmanager
def _request(core: EngineCore, prompt: Sequence[int], rows: int, steps: int) -> Iterator[None]:
    """One request past its prompt, with steps left for the caller."""
    speculation = core._config.speculation
    plan = speculation.resolve("goose", budget=rows - 1) if rows > 1 else speculation.resolve("off")
    room = (steps + _WARM_UP_STEPS + 1) * (rows + 1)
    sampling = SamplingParams(room, seed=0, temperature=0.0, ignore_eos=True)
    core.add(EngineRequest("profiled", tuple(prompt), sampling, plan, time.monotonic()))
    warm = 0
    while warm < _WARM_UP_STEPS:
        warm += bool(core.step().spec)
    yield
    core.abort("profiled")
    core.step()


def _timed(core: EngineCore) -> float:
    begin = time.perf_counter()
    outputs: StepOutputs = core.step()
    seconds = time.perf_counter() - begin
    if not outputs.spec:
        raise RuntimeError("the profiled request has ended early")
    return seconds
