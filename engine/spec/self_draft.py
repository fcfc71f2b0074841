"""Self-Draft (AAAI 2025): parallel branches under perturbed prefixes feed a cache of n-grams.

A baseline, through the same protocol as everything else. Branch 0 continues the text, every other
branch continues a short random prefix behind the text; all grow by one token per step and slide
with it. Without the authors' corpus, so that it is free of data as it is free of training. Our walk
also yields the bonus token behind a full match.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import SelfDraftConfig
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.ngram_pool import NgramPool
from engine.spec.tree import EXPLORE, TokenTree
from engine.types import SpeculationPlan


@dataclass(slots=True)
class Branch:
    """Tokens that the target gave (`levels`) behind the text and a perturbation (`prefix`)."""

    prefix: list[int]
    levels: list[int]


class SelfDraft:
    """The drafter of one request, with B = `branches` and L - 2 live levels each.

    B shrinks until the branches fit half the plan's budget.
    """

    def __init__(self, plan: SpeculationPlan, config: SelfDraftConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._num_levels = config.branch_len - 2
        size = self._num_levels + config.max_prefix
        self._num_branches = max(
            1, min(config.branches, (plan.budget // 2 + config.max_prefix) // size)
        )
        self.begin((0,))

    @property
    def needs(self) -> Needs:
        """The top-1 token of every row."""
        return Needs(top_k=1)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Forget everything; draw random prefixes from the prompt, cache the prompt's n-grams.

        One prefix more than branches need for each level: every warm-up step consumes one, which
        has one token for that.
        """
        config, rng = self._config, random.Random(self._seed)
        self._token_ids = token_ids
        self._length = min(config.ngram, config.branch_len - 1)
        self._pool = NgramPool(self._length, config.guesses, config.pool_keys)
        self._pool.harvest(token_ids, len(token_ids) - config.pool_keys)
        lengths = [1] * self._num_levels
        lengths += [rng.randint(1, config.max_prefix) for _ in range(self._num_branches - 1)]
        self._branches = [Branch(rng.choices(token_ids, k=length), []) for length in lengths]
        self._tips: list[int] = []

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing: the prompt's rows are not asked for."""

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The anchor's n-grams, once the branches are grown, and the branches if they fit."""
        tree = TokenTree.anchored(self._token_ids[-1])
        lengths = [len(branch.prefix) + len(branch.levels) for branch in self._branches]
        size, depth = sum(lengths), max(lengths)
        fits = limits.depth > 0 and size <= limits.budget and depth <= limits.explore_depth
        if self._is_grown:
            self._pool.add_to(tree, limits.budget - size * fits, limits.depth)
        self._tips = [self._add(tree, branch) for branch in self._branches] if fits else []
        return tree

    def observe(self, result: StepResult) -> None:
        """Grow every branch by its answer, cache the n-grams, slide by one position."""
        is_grown = self._is_grown
        behind_anchor = len(self._token_ids) - len(result.new_token_ids)
        tail = list(self._token_ids[max(0, behind_anchor - self._length) : behind_anchor])
        for branch, tip in zip(self._branches if self._tips else [], self._tips, strict=True):
            branch.levels.append(int(result.rows.token_ids[tip, 0]))
            self._pool.harvest((branch.prefix or tail) + branch.levels)
        if self._tips and is_grown:
            self._slide()
        elif self._tips:
            self._consume_prefix()
        self._pool.harvest(self._token_ids, behind_anchor)

    def state_size(self) -> int:
        """N-grams, and the branches."""
        return self._pool.num_ngrams + len(self._branches)

    @property
    def _is_grown(self) -> bool:
        return len(self._branches[0].levels) == self._num_levels

    def _add(self, tree: TokenTree, branch: Branch) -> int:
        """Append a branch below the anchor; return its last node."""
        node = 0
        for token_id in branch.prefix + branch.levels:
            node = tree.add(node, token_id, EXPLORE)
        return node

    def _slide(self) -> None:
        """Each first level moves into the prefix, whose first token leaves."""
        for branch in self._branches:
            if branch.prefix:
                branch.prefix = [*branch.prefix[1:], branch.levels[0]]
            del branch.levels[0]

    def _consume_prefix(self) -> None:
        """The text has reached the first prefix's place: its branch becomes branch 0."""
        if not self._branches[0].prefix:
            del self._branches[0]
        self._branches[0].prefix = []
