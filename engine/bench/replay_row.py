"""One line of a replay: an arm on recorded text, under a modelled step cost."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.bench.arm import Arm
from engine.types import SpecStats


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a drafter did on one trace or on several. Sums of these are again such counts."""

    stats: SpecStats = field(default_factory=SpecStats)
    num_prompts: int = 0
    predicted_tokens: float = 0.0  # by a priced method, over all its steps

    def __add__(self, other: "Replayed") -> "Replayed":
        return Replayed(
            self.stats + other.stats,
            self.num_prompts + other.num_prompts,
            self.predicted_tokens + other.predicted_tokens,
        )


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One arm on one suite at one slope. A step of n rows costs 1 + slope * (n - 1)."""

    suite: str
    method: str
    slope: float
    prompts: int
    tokens: int
    steps: int
    tau: float
    hit_rate: float
    accept_length: float
    verify_nodes: float  # candidate nodes per step
    speedup: float  # modelled, over plain decoding; drafting is free in the model
    predicted: float | None  # expected over realised tokens, of methods that predict
    width: int
    depth: int
    budget: int


def replay_row(suite: str, arm: Arm, slope: float, parts: Iterable[Replayed]) -> ReplayRow:
    """The row of all `parts` together."""
    total = sum(parts, Replayed())
    stats = total.stats
    return ReplayRow(
        suite=suite,
        method=arm.label,
        slope=slope,
        prompts=total.num_prompts,
        tokens=stats.tokens,
        steps=stats.steps,
        tau=stats.tau,
        hit_rate=stats.hit_rate,
        accept_length=stats.accept_length,
        verify_nodes=stats.draft_tokens / stats.steps,
        speedup=stats.tokens / (stats.steps + slope * stats.draft_tokens),
        predicted=total.predicted_tokens / stats.tokens if total.predicted_tokens else None,
        width=arm.plan.width,
        depth=arm.plan.depth,
        budget=arm.plan.budget,
    )
