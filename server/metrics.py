"""Prometheus metrics: counters that PromQL turns into rates, hit rate, accept length and tau.

One registry per app and one process, so there is no directory to share. Every child exists at 0
from the start, and no label ever holds a client's text.
"""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from engine import __version__
from engine.api import (
    EngineInfo,
    EngineOutput,
    EngineStatus,
    FinishReason,
    RequestTimes,
    StepOutputs,
)
from server.spec_metrics import SIZE_BUCKETS, SpecMetrics

# Seconds. Speculation gives tokens 1 to 10 ms apart, so the buckets resolve 1 ms there.
LATENCY_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01),
    *(0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
REJECTIONS = (
    "queue_requests",  # 503: too many sequences wait
    "queue_tokens",  # 503: too many prompt tokens wait
    "draining",  # 503: the server is shutting down
    "engine",  # 503: the engine is dead
    "timeout",  # 408
    "rate_limit",  # 429
    "api_key",  # 401
    "admin_key",  # 403
    "body_size",  # 413
    "invalid",  # every other 4xx
)


class Metrics:
    """All series of one app. Called on the event loop only."""

    def __init__(self, info: EngineInfo, max_depth: int) -> None:
        """`max_depth`: the deepest level that any tree may have."""
        self.registry = CollectorRegistry()
        self._model = info.model_name
        self._running = self._gauge("num_requests_running", "Sequences that hold a KV slot.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait for a KV slot.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens computed.")
        self._generated = self._counter("generation_tokens", "Tokens given to clients.")
        self._ends = self._by_label(
            "request_success",
            "Sequences that ended, by reason.",
            "finished_reason",
            [reason.value for reason in FinishReason],
        )
        self._rejected = self._by_label(
            "requests_rejected",
            "Requests refused or given up by the HTTP side, by reason.",
            "reason",
            REJECTIONS,
        )
        self._kv_tokens = self._gauge("kv_tokens", "Committed KV rows of running sequences.")
        capacity = self._gauge("kv_capacity_tokens", "KV rows of all slots together.")
        capacity.set(info.max_batch * info.max_model_len)
        self._cache_tokens = self._gauge(
            "answer_cache_tokens", "Tokens of ended requests' answers that are drafted from."
        )
        self._memory_faults = self._counter(
            "memory_faults", "Forward passes that found too little memory and were made smaller."
        )
        self._prefix_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in what slots hold."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits", "Prompt tokens whose KV a slot still held."
        )
        self._ttft = self._latency("time_to_first_token", "Arrival to first token.")
        self._inter_token = self._latency("inter_token_latency", "Mean gap of a block's tokens.")
        self._e2e = self._latency("e2e_request_latency", "Arrival to last token.")
        self._queue = self._latency("request_queue_time", "Arrival to KV slot.")
        self._tasks = self._gauge("event_loop_tasks", "Asynchronous tasks of the HTTP side.")
        self._phases = self._step_phases()
        self._step_rows = Histogram(
            "treeline_step_rows",
            "Rows of one forward pass: prompt chunks and trees of all requests.",
            ["model_name"],
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        ).labels(self._model)
        self._step_cost = Gauge(
            "treeline_step_cost_seconds",
            "A forward pass of so many rows, as measured and corrected by every step.",
            ["model_name", "rows"],
            registry=self.registry,
        )
        self._spec = SpecMetrics(self.registry, self._model, max_depth)
        self._last_token: dict[str, float] = {}
        ProcessCollector(registry=self.registry)
        self._build(info)

    def observe_step(self, step: StepOutputs, now: float) -> None:
        """Count one engine step that ended at `now`, seconds of time.monotonic()."""
        self._prompt_tokens.inc(step.num_prompt_tokens)
        self._memory_faults.inc(step.num_memory_faults)
        self._prefix_queries.inc(step.num_prefix_queries)
        self._prefix_hits.inc(step.num_prefix_hits)
        self._spec.observe(step)
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

    def count_rejected(self, reason: str) -> None:
        """Count one request that was not served, for one of REJECTIONS."""
        self._rejected[reason].inc()

    def render(self, status: EngineStatus) -> bytes:
        """The exposition text, with the load as it is now."""
        self._running.set(status.num_running)
        self._waiting.set(status.num_waiting)
        self._kv_tokens.set(status.num_kv_tokens)
        self._cache_tokens.set(status.num_cache_tokens)
        self._tasks.set(len(asyncio.all_tasks()))
        self._spec.show_entries(dict(status.drafter_entries))
        for rows, seconds in status.step_cost:
            self._step_cost.labels(self._model, str(rows)).set(seconds)
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

    def _by_label(
        self, name: str, help_: str, label: str, values: Sequence[str]
    ) -> dict[str, Counter]:
        family = Counter(f"treeline_{name}", help_, ["model_name", label], registry=self.registry)
        return {value: family.labels(self._model, value) for value in values}

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

    def _build(self, info: EngineInfo) -> None:
        Info("treeline_build", "What runs here.", registry=self.registry).info(
            {
                "version": __version__,
                "torch": version("torch"),
                "transformers": version("transformers"),
                "model_name": info.model_name,
                "architecture": info.architecture,
                "device": info.device,
                "dtype": info.dtype,
            }
        )
