"""SuffixDecoding: draft what followed the longest matches, as far as counts make it likely.

Unlike a plain copy it weighs all earlier occurrences, drafts more after a longer match, and may
learn from other requests' answers (arXiv 2411.04975).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from engine.config import SuffixConfig
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.suffix_tree import Point, SuffixTree, Text
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan


@dataclass(slots=True)
class _Draft:
    """Nodes below the anchor as (parent, token), and the sum of their probabilities."""

    nodes: list[tuple[int, int]] = field(default_factory=list)
    score: float = 0.0


class Suffix:
    """The drafter of one request: its own prompt and answer, and `shared` answers if given.

    For every match length L the likeliest continuation of at most L * factor + offset tokens is
    scored by the sum of its path probabilities. The best score is drafted; equal ones go to the
    longer match, then to the request's own text. A path's probability is the product of
    count(child) / count(node) along it, in which all counts but the last and the first cancel.
    """

    def __init__(
        self, plan: SpeculationPlan, config: SuffixConfig, shared: SuffixTree | None = None
    ) -> None:
        self._plan = plan
        self._config = config
        self._shared = shared
        self._targets: list[tuple[SuffixTree, Text]] = []  # where committed tokens go
        self._tokens: Sequence[int] = ()

    @property
    def needs(self) -> Needs:
        """Nothing: the text is enough."""
        return Needs()

    def begin(self, token_ids: Sequence[int]) -> None:
        """Count the prompt's substrings, for this request only."""
        self._tokens = token_ids
        own = SuffixTree(self._config.max_depth)
        text = own.new_text()
        for token in token_ids:
            own.append(text, token)
        self._targets = [(own, text)]
        if self._shared is not None:
            self._targets.append((self._shared, self._shared.new_text()))

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing to learn."""

    def observe(self, result: StepResult) -> None:
        """Count the committed tokens, in the shared tree too."""
        for tree, text in self._targets:
            for token in result.new_token_ids:
                tree.append(text, token)

    def state_size(self) -> int:
        """Tokens of the request's own tree."""
        return len(self._targets[0][0]) if self._targets else 0

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The best scored draft of all sources."""
        limits = DraftLimits(
            width=min(limits.width, self._plan.width) if self._config.as_tree else 1,
            depth=min(limits.depth, self._plan.depth),
            explore_depth=0,
            budget=min(limits.budget, self._plan.budget),
        )
        best = _Draft()
        for source, _ in self._targets:
            draft = self._best_match(source, limits)
            if draft.score > best.score:
                best = draft
        tree = TokenTree.anchored(self._tokens[-1])
        for parent, token in best.nodes:
            tree.add(parent, token)
        return tree

    def _best_match(self, source: SuffixTree, limits: DraftLimits) -> _Draft:
        """Over all suffixes of the context that have followers in `source`."""
        tail = self._tokens[-(self._config.max_depth - 1) :]

        def match(length: int) -> Point | None:
            point = source.find(tail[len(tail) - length :])
            return point if point and source.followers(point) else None

        # A shorter suffix occurs wherever a longer one does, so the longest is found by bisection.
        lengths = range(1, len(tail) + 1)
        longest = bisect_left(lengths, True, key=lambda length: match(length) is None)
        best = _Draft()
        for length in range(longest, 0, -1):
            size = min(limits.budget, int(length * self._config.factor + self._config.offset))
            if size <= best.score:
                break  # a score is at most the number of tokens, and ties go to the longer match
            point = match(length)
            assert point is not None
            draft = self._speculate(source, point, size, limits)
            if draft.score > best.score:
                best = draft
        return best

    def _speculate(
        self, source: SuffixTree, point: Point, size: int, limits: DraftLimits
    ) -> _Draft:
        """The `size` likeliest nodes below a match, those under `min_probability` left out."""
        draft = _Draft()
        matches = point[0].count
        least = self._config.min_probability * matches
        frontier: list[tuple[int, int, int, int, Point, int]] = []
        order = count()

        def offer(node: int, above: Point, depth: int) -> None:
            if depth < limits.depth:
                for token, times, below in source.followers(above, least)[: limits.width]:
                    heappush(frontier, (-times, next(order), node, token, below, depth + 1))

        offer(0, point, 0)
        while frontier and len(draft.nodes) < size:
            negative, _, parent, token, below, depth = heappop(frontier)
            draft.nodes.append((parent, token))
            draft.score -= negative / matches
            offer(len(draft.nodes), below, depth)
        return draft
