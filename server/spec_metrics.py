"""The speculation series, one set of children per method, all there from the start.

Names follow the schema that inference servers share (`spec_decode_num_*`), so that tools for one
read another. Ratios are left to PromQL.
"""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine.api import METHODS, SpecStats, StepOutputs

SUMS = {
    "steps": "Target forwards that gave tokens.",
    "drafts": "Steps with a non-empty candidate tree.",
    "draft_tokens": "Verified tree nodes, anchors not counted.",
    "explored_tokens": "Exploration nodes, computed but never verified.",
    "accepted_tokens": "Draft tokens committed, after any cut.",
    "hit_tokens": "Tokens committed in steps with a candidate tree.",
    "tokens": "Tokens committed.",
}
SIZE_BUCKETS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
DEPTH_BUCKETS = (*range(9), 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)


class SpecMetrics:
    """What drafting cost and gave, by method; what `auto` expected and got."""

    def __init__(self, registry: CollectorRegistry, model_name: str, max_depth: int) -> None:
        """`max_depth`: the deepest level that any tree may have."""
        labels = ["model_name", "method"]

        def counter(name: str, help_: str) -> dict[str, Counter]:
            family = Counter(f"treeline_spec_decode_{name}", help_, labels, registry=registry)
            return {method: family.labels(model_name, method) for method in METHODS}

        def histogram(name: str, help_: str, buckets: Sequence[int]) -> dict[str, Histogram]:
            name = f"treeline_spec_decode_{name}"
            family = Histogram(name, help_, labels, buckets=buckets, registry=registry)
            return {method: family.labels(model_name, method) for method in METHODS}

        self._sums = {field: counter(f"num_{field}", help_) for field, help_ in SUMS.items()}
        self._tree_size = histogram("tree_size", "Verified nodes per tree.", SIZE_BUCKETS)
        self._accepted_depth = histogram(
            "accepted_depth", "Draft tokens committed per tree.", DEPTH_BUCKETS
        )
        per_pos = Counter(
            "treeline_spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens committed, by 0-based depth below the anchor.",
            [*labels, "position"],
            registry=registry,
        )
        self._per_pos = {
            method: [per_pos.labels(model_name, method, str(depth)) for depth in range(max_depth)]
            for method in METHODS
        }
        entries = Gauge(
            "treeline_drafter_state_entries",
            "Tokens, n-grams, rows and nodes that drafters keep, and share, of running requests.",
            labels,
            registry=registry,
        )
        self._entries = {method: entries.labels(model_name, method) for method in METHODS}
        model = ["model_name"]
        self._price = Gauge(
            "treeline_price",
            "Of `auto`: tokens per second that a node must promise per second that it costs.",
            model,
            registry=registry,
        ).labels(model_name)
        self._predicted, self._realised = (
            Counter(name, help_, model, registry=registry).labels(model_name)
            for name, help_ in (
                ("treeline_predicted_tokens", "Tokens that `auto` expected of its steps."),
                ("treeline_realised_tokens", "Tokens that the same steps gave."),
            )
        )

    def observe(self, step: StepOutputs) -> None:
        """Count one engine step."""
        for method, stats in step.spec:
            self._add(method, stats)
            if method == "auto" and step.predicted_tokens > 0.0:
                self._price.set(step.price)
                self._predicted.inc(step.predicted_tokens)
                self._realised.inc(stats.tokens)
        for method, size in step.trees:
            self._tree_size[method].observe(size)

    def show_entries(self, entries: Mapping[str, int]) -> None:
        """Set what drafters keep now, by method."""
        for method, gauge in self._entries.items():
            gauge.set(entries.get(method, 0))

    def _add(self, method: str, stats: SpecStats) -> None:
        for field, counters in self._sums.items():
            counters[method].inc(getattr(stats, field))
        # What reached a depth includes what went deeper: differences say where paths ended.
        reached = [stats.steps, *stats.accepted_per_depth, 0]
        for depth, count in enumerate(stats.accepted_per_depth):
            self._per_pos[method][depth].inc(count)
        for depth in range(len(reached) - 1):
            for _ in range(reached[depth] - reached[depth + 1]):
                self._accepted_depth[method].observe(depth)
