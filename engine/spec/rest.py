"""REST: draft what followed the same words in a fixed collection of texts.

Where answers resemble known documents (code bases, manuals), retrieval knows the continuation
before the request has said anything like it (arXiv 2311.08252).
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.config import RestConfig
from engine.spec.datastore import SEPARATOR, Datastore, Tokens
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan

Prefix = tuple[int, int, int, int]  # -count, depth, parent prefix, token


class Rest:
    """The drafter of one request. The datastore is read only and may be shared by all."""

    def __init__(self, plan: SpeculationPlan, config: RestConfig, datastore: Datastore) -> None:
        self._plan = plan
        self._config = config
        self._datastore = datastore
        self._tokens: Sequence[int] = ()

    @property
    def needs(self) -> Needs:
        """Nothing: the text is enough."""
        return Needs()

    def begin(self, token_ids: Sequence[int]) -> None:
        """Start on a request's live token list."""
        self._tokens = token_ids

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing to learn."""

    def observe(self, result: StepResult) -> None:
        """Nothing to learn."""

    def state_size(self) -> int:
        """Nothing of its own: the datastore is read only."""
        return 0

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The most frequent continuations of the longest suffix that the datastore has."""
        tree = TokenTree.anchored(self._tokens[-1])
        width = min(limits.width, self._plan.width)
        depth = min(limits.depth, self._plan.depth, self._config.num_tokens)
        size = min(limits.budget, self._plan.budget, self._config.max_nodes)
        if depth == 0 or size == 0:
            return tree
        prefixes = _count_prefixes(self._continuations(depth), size)
        ranked = sorted(range(len(prefixes)), key=lambda index: (prefixes[index][:2], index))
        node_of = {-1: 0}
        num_children: dict[int, int] = {}
        for index in ranked[:size]:
            _, _, parent, token = prefixes[index]
            above = node_of.get(parent)
            if above is not None and num_children.get(above, 0) < width:
                num_children[above] = num_children.get(above, 0) + 1
                node_of[index] = tree.add(above, token)
        return tree

    def _continuations(self, length: int) -> Tokens:
        """[occurrences, length] of the longest suffix that occurs; no rows if none does."""
        shortest = self._config.min_suffix
        lengths = range(shortest, min(self._config.max_suffix, len(self._tokens)) + 1)

        def found(n: int) -> Tokens:
            return self._datastore.occurrences(self._tokens[-n:])

        # A shorter suffix occurs wherever a longer one does: bisection finds the longest.
        hits = bisect_left(lengths, True, key=lambda n: not len(found(n)))
        if hits == 0:
            return np.empty((0, length), np.uint32)
        n = lengths[hits - 1]
        starts = found(n)[: self._config.max_occurrences]
        return self._datastore.following(starts + np.uint32(n), length)


def _count_prefixes(continuations: Tokens, size: int) -> list[Prefix]:
    """The prefixes of all rows, at most the `size` most frequent of each depth.

    Any others can not be among the `size` most frequent of all, since a prefix is no more frequent
    than its own prefixes. A row ends at its first SEPARATOR.
    """
    prefixes: list[Prefix] = []
    group: npt.NDArray[np.int64] = np.full(len(continuations), -1, np.int64)  # each row's prefix
    for depth, column in enumerate(continuations.T.astype(np.int64), start=1):
        alive = (column != SEPARATOR) & ((group >= 0) | (depth == 1))
        rows = np.flatnonzero(alive)
        if not len(rows):
            break
        keys = (group[rows] + 1) << 32 | column[rows]
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        best = np.argsort(-counts, kind="stable")[:size]
        index_of = np.full(len(unique), -1, np.int64)
        index_of[best] = len(prefixes) + np.arange(len(best))
        for key, number in zip(unique[best].tolist(), counts[best].tolist(), strict=True):
            prefixes.append((-number, depth, (key >> 32) - 1, key & (2**32 - 1)))
        group = np.full(len(continuations), -1, np.int64)
        group[rows] = index_of[inverse]
    return prefixes
