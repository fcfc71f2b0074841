"""Prometheus metrics: counters that PromQL turns into rates, hit rate, accept length and tau.

One registry per app and one process, so there is no directory to share. Every child exists at 0
from the start, and no label ever holds a client's text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.api import (
    METHODS,
    EngineOutput,
    EngineStatus,
    FinishReason,
    RequestTimes,
    SpecStats,
    StepOutputs,
)

# Seconds. Speculation gives tokens 1 to 10 ms apart, so the buckets resolve 1 ms there.
LATENCY_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01),
    *(0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
SPEC_SUMS = {
    "steps": "Target forwards that gave tokens.",
    "drafts": "Steps with a non-empty candidate tree.",
    "draft_tokens": "Verified tree nodes, anchors not counted.",
    "explored_tokens": "Exploration nodes, computed but never verified.",
    "accepted_tokens": "Draft tokens committed, after any cut.",
    "hit_tokens": "Tokens committed in steps with a candidate tree.",
    "tokens": "Tokens committed.",
}
SIZE_BUCKETS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


@dataclass(frozen=True, slots=True)
class _SpecCounters:
    """One method's children; `sums` by the name of the SpecStats field that they sum."""

    sums: Mapping[str, Counter]
    accepted_per_position: Sequence[Counter]
    tree_size: Histogram

    def add(self, stats: SpecStats) -> None:
        for field, counter in self.sums.items():
            counter.inc(getattr(stats, field))
        for position, count in enumerate(stats.accepted_per_depth):
            self.accepted_per_position[position].inc(count)
        for _ in range(stats.steps):
            self.tree_size.observe(stats.draft_tokens / stats.steps)


class Metrics:
    """All series of one app. Called on the event loop only."""

    def __init__(self, model_name: str, max_depth: int) -> None:
        """`max_depth`: the deepest level that any tree may have."""
        self.registry = CollectorRegistry()
        self._model = model_name
        self._running = self._gauge("num_requests_running", "Sequences that hold a KV slot.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait for a KV slot.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed.")
        self._generated = self._counter("generation_tokens", "Tokens given to clients.")
        ends = Counter(
            "treeline_request_success",
            "Sequences that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._ends = {reason: ends.labels(model_name, reason.value) for reason in FinishReason}
        self._ttft = self._latency("time_to_first_token", "Arrival to first token.")
        self._inter_token = self._latency("inter_token_latency", "Mean gap of a block's tokens.")
        self._e2e = self._latency("e2e_request_latency", "Arrival to last token.")
        self._queue = self._latency("request_queue_time", "Arrival to KV slot.")
        self._phases = self._step_phases()
        self._step_rows = Histogram(
            "treeline_step_rows",
            "Rows of one forward pass: prompt chunks and trees of all requests.",
            ["model_name"],
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        ).labels(model_name)
        self._spec = self._spec_counters(max_depth)
        self._last_token: dict[str, float] = {}

    def observe_step(self, step: StepOutputs, now: float) -> None:
        """Count one engine step that ended at `now`, seconds of time.monotonic()."""
        self._prompt_tokens.inc(step.num_prompt_tokens)
        for method, stats in step.spec:
            self._spec[method].add(stats)
        if step.num_rows:
            self._step_rows.observe(step.num_rows)
            for phase, seconds in (
                ("draft", step.draft_seconds),
                ("forward", step.forward_seconds),
                ("walk", step.walk_seconds),
            ):
                self._phases[phase].observe(seconds)
        for output in step.outputs:
            self._observe_output(output, now)

    def render(self, status: EngineStatus) -> bytes:
        """The exposition text, with the load as it is now."""
        self._running.set(status.num_running)
        self._waiting.set(status.num_waiting)
        return generate_latest(self.registry)

    def _observe_output(self, output: EngineOutput, now: float) -> None:
        num_tokens = len(output.new_token_ids)
        if num_tokens:
            self._generated.inc(num_tokens)
            before = self._last_token.get(output.request_id)
            if before is not None:
                for _ in range(num_tokens):
                    self._inter_token.observe((now - before) / num_tokens)
            self._last_token[output.request_id] = now
        if output.finish_reason is not None:
            self._last_token.pop(output.request_id, None)
            self._ends[output.finish_reason].inc()
            if output.times is not None:
                self._observe_times(output.times)

    def _observe_times(self, times: RequestTimes) -> None:
        self._queue.observe(times.scheduled - times.arrival)
        if times.first_token:
            self._ttft.observe(times.first_token - times.arrival)
            self._e2e.observe(times.last_token - times.arrival)

    def _gauge(self, name: str, help_: str) -> Gauge:
        gauge = Gauge(f"treeline_{name}", help_, ["model_name"], registry=self.registry)
        return gauge.labels(self._model)

    def _counter(self, name: str, help_: str) -> Counter:
        counter = Counter(f"treeline_{name}", help_, ["model_name"], registry=self.registry)
        return counter.labels(self._model)

    def _latency(self, name: str, help_: str) -> Histogram:
        histogram = Histogram(
            f"treeline_{name}_seconds",
            help_,
            ["model_name"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        return histogram.labels(self._model)

    def _step_phases(self) -> dict[str, Histogram]:
        histogram = Histogram(
            "treeline_step_seconds",
            "One engine step, by phase.",
            ["model_name", "phase"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        return {
            phase: histogram.labels(self._model, phase) for phase in ("draft", "forward", "walk")
        }

    def _spec_counters(self, max_depth: int) -> dict[str, _SpecCounters]:
        labels = ["model_name", "method"]

        sums = {
            field: Counter(
                f"treeline_spec_decode_num_{field}", help_, labels, registry=self.registry
            )
            for field, help_ in SPEC_SUMS.items()
        }
        per_pos = Counter(
            "treeline_spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens committed, by 0-based depth below the anchor.",
            [*labels, "position"],
            registry=self.registry,
        )
        tree_size = Histogram(
            "treeline_spec_decode_tree_size",
            "Verified nodes per tree, averaged over the trees of one method in one step.",
            labels,
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        )
        return {
            method: _SpecCounters(
                {field: counter.labels(self._model, method) for field, counter in sums.items()},
                [per_pos.labels(self._model, method, str(depth)) for depth in range(max_depth)],
                tree_size.labels(self._model, method),
            )
            for method in METHODS
        }
