"""What `auto` shares between requests: the calibrator, the cost table, the price, the cache.

One planner serves one engine. Before a step it splits the step's nodes among all requests at one
price; after it, it compares what it expected with what came.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.config import AutoConfig
from engine.spec.adjacency_source import AdjacencySource
from engine.spec.answer_cache import AnswerCache
from engine.spec.bigrams import Bigrams
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
from engine.spec.watchdog import Clock, Watchdog

if TYPE_CHECKING:
    from engine.spec.auto import Auto

Planned = tuple[
    "Auto", Callable[[], DraftLimits]
]  # asked for its bounds only if it looks for nodes

_DRAFT_RATE = 0.05  # of the newest step in the seconds per drafted node
_DOUBT = 0.01  # plain steps that a node costs more, per unit of the watchdog's factor above 1
PLAIN_EVERY = 64  # steps: one is plain, so that it is known what that takes now
_PLAIN_RATE = 0.25  # of the newest plain step in that
_SCORED = 2  # requests per step whose candidates are scored: enough for calibration, in turn
_MANY_ROWS, _CHEAP = 64, 2.0
_SUREST, _FEW = 0.9, 4  # probability of the best nodes, and how many of these there may be
_FAR_BELOW = 0.5  # of a probability that pays
_FAR = 64  # nodes between the sizes looked at beyond the cost table


class Planner:
    """Plans the steps of one engine.

    Of the last plan: `price`, tokens per second that a node had to promise per second of its cost;
    `least_score`, below which a guess could not have paid by far; `predicted_tokens`, what its
    requests were expected to give together.
    """

    def __init__(self, config: AutoConfig, cost: StepCost, bigrams: Bigrams | None = None) -> None:
        """`config.cost_slope`, if set, replaces `cost` by a fixed table without drafting time."""
        slope = config.cost_slope
        self.config = config
        self.bigrams = bigrams
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
        self.least_score = 0.0
        self.predicted_tokens = 0.0
        self._watchdog = Watchdog()
        self._node_seconds = 0.0  # drafting, per node
        self._plain_seconds: dict[int, float] = {}  # of plain steps, by requests
        self._plain_host: dict[int, float] = {}  # of that, outside the pass
        self._num_plans = 0
        self._num_trees = self._num_nodes = 0  # of the last plan
        self._promised = 0.0  # by its nodes
        self._is_plain = False  # whether nothing was even looked for
        self._turn = 0  # of the requests to be scored

    @property
    def is_resting(self) -> bool:
        """Whether steps are plain for now, since drafting has lost."""
        return self.config.watchdog and self._watchdog.is_resting

    @property
    def may_skip(self) -> bool:
        """Whether looking for nodes takes time that counts, so that it should not be in vain."""
        return self.config.watchdog and not self.cost.is_fixed

    @property
    def has_cheap_rows(self) -> bool:
        """Whether many rows cost little more than one, as on a GPU."""
        return self.cost(_MANY_ROWS) < _CHEAP * self.cost(1)

    @property
    def is_quiet(self) -> bool:
        """Whether the last plan was for one request at most."""
        return self._num_trees <= 1

    def _is_plain_due(self, num_requests: int) -> bool:
        """Whether the watchdog should see a plain step of so many requests now."""
        if not self.may_skip:
            return False
        return num_requests not in self._plain_seconds or self._num_plans % PLAIN_EVERY == 0

    def _can_pay(self, num_requests: int, other_rows: int) -> bool:
        """Whether nodes that are almost sure would be worth their rows. Where many requests keep
        the machine busy, looking for nodes takes time for nothing."""
        rows = num_requests + other_rows
        per_row = (self.cost(rows + _FEW) - self.cost(rows)) / _FEW
        return per_row < _SUREST * self.cost(num_requests) / num_requests

    def plan(self, requests: Sequence[Planned], other_rows: int = 0) -> None:
        """Give each drafter that should look for nodes its next tree; the others' are the anchors,
        at no cost: whoever gains nothing should not be slower than without drafting.

        `other_rows`: rows of the same step that are computed anyway. They move the place on the
        cost curve at which nodes are bought, not what the requests are compared with.
        """
        num_requests = len(requests)
        self._watchdog.meet(num_requests)
        self._num_plans += 1
        looking: list[Planned] = []
        is_idle = self.is_resting or self._is_plain_due(num_requests)
        if not is_idle and self._can_pay(num_requests, other_rows):
            looking = [request for request in requests if request[0].is_due()]
        self._is_plain = not looking
        self._num_trees = num_requests
        if looking:
            self._share(looking, num_requests, other_rows)
            return
        self._num_nodes, self._promised = 0, 0.0
        self.predicted_tokens = float(num_requests)
        self.price = num_requests / self.cost(num_requests)

    def _share(self, looking: Sequence[Planned], num_requests: int, other_rows: int) -> None:
        bounds = [(drafter, limits()) for drafter, limits in looking]
        trees = [drafter.grow(limits) for drafter, limits in bounds]
        base = num_requests + other_rows
        plain = self.cost(num_requests)
        offset = self.cost(base) - plain
        factor = self._watchdog.factor
        # A curve that looks flat would buy nodes at any price, so doubt also adds a slope.
        per_node = self._node_seconds + _DOUBT * (factor - 1.0) * plain

        def cost(nodes: int) -> float:
            return self.cost(base + nodes) - offset + nodes * per_node

        most = sum(limits.budget for _, limits in bounds)
        trust = self.trust.factor
        result = split(trees, cost, self._edges(base, most), factor / trust, num_requests)
        self.price = result.price
        self.least_score = _FAR_BELOW * (cost(1) - cost(0)) * result.price
        self._num_nodes = sum(result.sizes)
        kept = [
            drafter.keep(size, is_scored=(place - self._turn) % len(trees) < _SCORED)
            for place, ((drafter, _), size) in enumerate(zip(bounds, result.sizes, strict=True))
        ]
        self._turn += _SCORED
        self._promised = sum(kept) - len(trees)
        self.predicted_tokens = num_requests + trust * self._promised

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
        if self._num_nodes:
            per_node = draft_seconds / self._num_nodes
            self._node_seconds += _DRAFT_RATE * (per_node - self._node_seconds)
        if self.config.watchdog:
            self._watch(tokens, rows, forward_seconds, draft_seconds + walk_seconds)

    def _watch(self, tokens: int, rows: int, forward: float, host: float) -> None:
        plain = self._num_trees
        if self._is_plain:
            self._watchdog.pass_by()
            _move(self._plain_seconds, plain, forward + host)
            _move(self._plain_host, plain, host)
            return
        plain_pass = self.cost(plain)
        real = Clock(forward + host, self._plain_seconds.get(plain, plain_pass))
        usual = Clock(self.cost(rows) + host, plain_pass + self._plain_host.get(plain, 0.0))
        self._watchdog.observe(tokens, plain, real, usual, self._num_nodes)

    def pass_by(self) -> None:
        """A step went by that cannot be learned from."""
        self._watchdog.pass_by()

    def _edges(self, base: int, most: int) -> list[int]:
        """Numbers of nodes that fill the step up to a measured size."""
        edges = [0, *(size - base for size in self.cost.sizes if size > base)]
        while edges[-1] < most:
            edges.append(edges[-1] + _FAR)
        return edges


def _move(known: dict[int, float], key: int, newest: float) -> None:
    before = known.get(key)
    known[key] = newest if before is None else before + _PLAIN_RATE * (newest - before)
