"""Lookahead decoding (arXiv 2402.02057): Jacobi iteration in a window, verified as n-grams.

A baseline, through the same protocol as everything else. The window is a token tree: row 0 is a
chain below the anchor, which is its column 0, and element (row r, column i) hangs below element
(r - 1, i); so it sees row 0 up to its column and its own column above it, at position
anchor + r + i. Our walk also yields the bonus token behind a full match.
"""

import random
from collections.abc import Sequence

from engine.config import LookaheadConfig
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.ngram_pool import NgramPool
from engine.spec.tree import EXPLORE, TokenTree
from engine.types import SpeculationPlan


class Lookahead:
    """The drafter of one request, with W = `window`, N = `ngram`, G = `guesses`.

    N shrinks to the plan's depth, and W until the window fits half the plan's budget.
    """

    def __init__(self, plan: SpeculationPlan, config: LookaheadConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._num_rows = max(2, min(config.ngram - 1, plan.depth))
        self._width = max(1, min(config.window, (plan.budget + 1) // (2 * self._num_rows)))
        self.begin((0,))

    @property
    def needs(self) -> Needs:
        """The top-1 token of every row."""
        return Needs(top_k=1)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Forget everything; row 0 starts with random tokens of the prompt, the rest empty."""
        self._token_ids = token_ids
        self._pool = NgramPool(self._num_rows, self._config.guesses, self._config.pool_keys)
        length = self._width + self._num_rows - 2
        self._rows = [random.Random(self._seed).choices(token_ids, k=length)]
        self._tips: list[int] = []
        if self._config.pool_from_text:
            self._pool.harvest(token_ids, len(token_ids) - self._config.pool_keys)

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing: the prompt's rows are not asked for."""

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The anchor's n-grams, once the window is filled, and the window if it fits."""
        tree = TokenTree.anchored(self._token_ids[-1])
        size = sum(map(len, self._rows))
        depth = max(row + len(self._rows[row]) - (row > 0) for row in range(len(self._rows)))
        fits = limits.depth > 0 and size <= limits.budget and depth <= limits.explore_depth
        if self._is_filled:
            self._pool.add_to(tree, limits.budget - size * fits, limits.depth)
        self._tips = self._add_window(tree) if fits else []
        return tree

    def observe(self, result: StepResult) -> None:
        """Add a row of answers, harvest the columns as n-grams, slide by one position.

        The window moves by one however many tokens were accepted.
        """
        if self._tips:
            row = result.rows.token_ids[self._tips, 0].tolist()
            if self._is_filled:
                self._harvest(result.tree.token_ids[0], row)
                first, *others = self._rows[1:]
                self._rows = [first[1:], *others, row]
            else:
                self._rows = [above[1:] for above in [*self._rows, row]]
        if self._config.pool_from_text:
            self._pool.harvest(self._token_ids, len(self._token_ids) - len(result.new_token_ids))

    def state_size(self) -> int:
        """N-grams, and tokens of the window."""
        return self._pool.num_ngrams + sum([len(row) for row in self._rows])

    @property
    def _is_filled(self) -> bool:
        return len(self._rows) == self._num_rows

    def _add_window(self, tree: TokenTree) -> list[int]:
        """Append the window's rows; return the nodes of the last one, column by column."""
        nodes = [0]
        for token_id in self._rows[0]:
            nodes.append(tree.add(nodes[-1], token_id, EXPLORE))
        for row in self._rows[1:]:
            columns = zip(nodes, row, strict=True)
            nodes = [tree.add(above, token_id, EXPLORE) for above, token_id in columns]
        return nodes

    def _harvest(self, anchor: int, row: list[int]) -> None:
        """One n-gram per column: row 0's token, then the column below it down to the answer."""
        keys = [anchor, *self._rows[0]]
        for key, *column in zip(keys, *self._rows[1:], row, strict=True):
            self._pool.insert(key, tuple(column))
