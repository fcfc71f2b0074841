"""What `auto` shares between requests: the calibrator, the cost table, the price, the cache.

One planner serves one engine. Before a step it splits the step's nodes among all requests at one
price; after it, it compares what it expected with what came.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.config import AutoConfig
from engine.spec.adjacency_source import AdjacencySource
from engine.spec.answer_cache import AnswerCache
from engine.spec.budget import split
from engine.spec.calibrator import Calibrator
from engine.spec.context_source import ContextSource
from engine.spec.drafter import DraftLimits
from engine.spec.exploration_worth import ExplorationWorth
from engine.spec.forced_source import ForcedSource
from engine.spec.pool_source import PoolSource
from engine.spec.prediction_source import PredictionSource
from engine.spec.step_cost import StepCost
from engine.spec.trust import Trust
from engine.spec.watchdog import Watchdog

if TYPE_CHECKING:
    from engine.spec.auto import Auto

_DRAFT_RATE = 0.05  # of the newest step in the seconds per drafted node
_DOUBT = 0.01  # plain steps that a node costs more, per unit of the watchdog's factor above 1
_PLAIN_HOST = 1e-4  # seconds of bookkeeping per request of a plain step, before any was seen
_HOST_RATE = 0.05  # of the newest plain step in that
_SCORED = 2  # requests per step whose candidates are scored: enough for calibration, in turn
_FAR = 64  # nodes between the sizes looked at beyond the cost table


class Planner:
    """Plans the steps of one engine.

    `price`: tokens per second that a node must promise per second that it costs, as of the last
    plan. `predicted_tokens`: what the last plan's requests were expected to give together.
    """

    def __init__(self, config: AutoConfig, cost: StepCost) -> None:
        """`config.cost_slope`, if set, replaces `cost` by a fixed table without drafting time."""
        slope = config.cost_slope
        self.config = config
        self.cost = cost if slope is None else StepCost.sloped(slope, is_fixed=True)
        # In the order of Auto's places.
        priors = [ContextSource.priors, AdjacencySource.priors, PoolSource.priors]
        priors += [ContextSource.priors, ContextSource.priors, AdjacencySource.priors]
        priors += [PredictionSource.priors, ForcedSource.priors]
        self.cache: AnswerCache | None = None
        if config.cache_scope is not None:
            successors = AdjacencySource(config.width, config.max_rows)
            self.cache = AnswerCache(
                config.cache_scope, config.order, config.cache_tokens, successors
            )
        self.calibrator = Calibrator(priors, config.prior_weight, config.half_life)
        self.exploration = ExplorationWorth()
        self.trust = Trust()
        self.price = 0.0
        self.predicted_tokens = 0.0
        self._watchdog = Watchdog()
        self._node_seconds = 0.0  # drafting, per node
        self._plain_host = _PLAIN_HOST
        self._num_trees = self._num_nodes = 0  # of the last plan
        self._promised = 0.0  # by its nodes
        self._turn = 0  # of the requests to be scored

    @property
    def is_resting(self) -> bool:
        """Whether steps are plain for now, since drafting has lost."""
        return self.config.watchdog and self._watchdog.is_resting

    @property
    def is_quiet(self) -> bool:
        """Whether the last plan was for one request at most."""
        return self._num_trees <= 1

    def _rest(self, drafters: Sequence[tuple["Auto", DraftLimits]]) -> None:
        for drafter, _ in drafters:
            drafter.rest()
        self._num_trees, self._num_nodes = len(drafters), 0
        self._promised, self.predicted_tokens = 0.0, float(len(drafters))
        self.price = len(drafters) / self.cost(len(drafters))

    def plan(self, drafters: Sequence[tuple["Auto", DraftLimits]], other_rows: int = 0) -> None:
        """Give each drafter its next tree.

        `other_rows`: rows of the same step that are computed anyway. They move the place on the
        cost curve at which nodes are bought, not what the requests are compared with.
        """
        self._watchdog.meet(len(drafters))
        if self.is_resting:
            self._rest(drafters)
            return
        trees = [drafter.grow(limits) for drafter, limits in drafters]
        base = len(trees) + other_rows
        plain = self.cost(len(trees))
        offset = self.cost(base) - plain
        factor = self._watchdog.factor
        # A curve that looks flat would buy nodes at any price, so doubt also adds a slope.
        per_node = self._node_seconds + _DOUBT * (factor - 1.0) * plain

        def cost(nodes: int) -> float:
            return self.cost(base + nodes) - offset + nodes * per_node

        most = sum(limits.budget for _, limits in drafters)
        trust = self.trust.factor
        result = split(trees, cost, self._edges(base, most), factor / trust)
        self.price = result.price
        self._num_trees, self._num_nodes = len(trees), sum(result.sizes)
        kept = [
            drafter.keep(size, is_scored=(place - self._turn) % len(trees) < _SCORED)
            for place, ((drafter, _), size) in enumerate(zip(drafters, result.sizes, strict=True))
        ]
        self._turn += _SCORED
        self._promised = sum(kept) - len(trees)
        self.predicted_tokens = len(trees) + trust * self._promised

    def observe(
        self,
        tokens: int,
        rows: int,
        forward_seconds: float,
        draft_seconds: float,
        walk_seconds: float = 0.0,
    ) -> None:
        """Learn from a step that held the last plan's trees and nothing else.

        `tokens`: what its requests were given together.
        """
        if not self._num_trees:
            return
        self.trust.observe(self._promised, tokens - self._num_trees)
        self.cost.observe(rows, forward_seconds)
        if self.cost.is_fixed:
            return
        host = draft_seconds + walk_seconds
        if self.is_resting:
            self._plain_host += _HOST_RATE * (host / self._num_trees - self._plain_host)
        if self._num_nodes:
            per_node = draft_seconds / self._num_nodes
            self._node_seconds += _DRAFT_RATE * (per_node - self._node_seconds)
        if self.config.watchdog:
            seconds = forward_seconds + host
            plain = self.cost(self._num_trees) + self._plain_host * self._num_trees
            self._watchdog.observe(tokens, seconds, self._num_trees, plain, self._num_nodes)

    def pass_by(self) -> None:
        """A step went by that cannot be learned from."""
        self._watchdog.pass_by()

    def _edges(self, base: int, most: int) -> list[int]:
        """Numbers of nodes that fill the step up to a measured size."""
        edges = [0, *(size - base for size in self.cost.sizes if size > base)]
        while edges[-1] < most:
            edges.append(edges[-1] + _FAR)
        return edges
