"""Progressive Tree Drafting (arXiv 2607.10661): draft a tree beside the text, verify from a pool.

Each step's token tree has two parts below the anchor that never see each other. The candidates are
the pool's trie of the last token, and are verified. The draft tree is only explored: its rows tell
it how to grow, and what it has grown is what the pool offers when the text gets there.
"""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from itertools import count

from engine.config import PtdConfig
from engine.spec.draft_tree import DraftNode, DraftTree
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.pool import Pool, Trie
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan

NUM_SEEDS = 2


class Ptd:
    """The PTD drafter of one request. With every extension of `config` off it is the paper's.

    `plan.width` is the number of children per node and of spine nodes of the draft tree,
    `plan.depth` the levels of each spine node's subtree. Both shrink until the tree's eldest chains
    fit the plan's budget. The candidates' width is the pool's own: the paper verifies whole tries.
    """

    def __init__(
        self,
        plan: SpeculationPlan,
        config: PtdConfig,
        seed: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._config = config
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        self._max_explored = min(config.max_explored, plan.budget)
        self._width = min(plan.width, self._max_explored)
        self._depth = min(plan.depth, self._max_explored // self._width)
        self.begin(())

    @property
    def needs(self) -> Needs:
        """The top-1 token of every row."""
        return Needs(top_k=1)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Forget everything and plant the first draft tree with tokens of the prompt."""
        config = self._config
        self._token_ids = token_ids
        self._draft_tree = DraftTree(self._width, self._depth, self._max_explored)
        self._pool = Pool(
            config.pool_nodes_per_key, config.pool_keys, config.pool_depth, config.refresh
        )
        self._explored: list[DraftNode] = []
        prompt = [token_id for token_id in token_ids if token_id not in self._eos_token_ids]
        for chain in self._seeds(prompt, random.Random(self._seed)):
            self._draft_tree.plant(chain)
        if config.pool_from_text:
            self._learn_text(max(0, len(token_ids) - config.pool_keys))

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing: the prompt's rows are not asked for."""

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The last token's candidates, then as much of the draft tree as fits.

        Half of a tight budget is left to the draft tree, which starves the pool otherwise. When one
        more token ends the request there is nothing left to draft for.
        """
        tree = TokenTree.anchored(self._token_ids[-1])
        self._explored = []
        if limits.depth > 0:
            reserved = min(len(self._draft_tree), limits.budget // 2)
            room = min(self._config.max_candidates, limits.budget - reserved)
            self._add_candidates(tree, room, limits.depth)
            room = limits.budget - tree.num_draft_tokens
            self._explored = self._draft_tree.add_to(tree, room, limits.explore_depth)
        return tree

    def observe(self, result: StepResult) -> None:
        """Feed the pool, then grow and prune the draft tree by what its rows predict."""
        tree, draft_tree = result.tree, self._draft_tree
        answers: list[int] = result.rows.token_ids[:, 0].tolist()
        num_verified = 1 + tree.num_draft_tokens
        for node, answer in zip(self._explored, answers[num_verified:], strict=True):
            node.prediction = answer

        anchor = len(self._token_ids) - len(result.new_token_ids) - 1
        previous = self._token_ids[max(0, anchor - 1)]
        self._learn_verified(tree, answers[:num_verified], previous)
        if draft_tree.is_full_depth or self._config.pool_every_step:
            for previous, token_id, trie in draft_tree.subtrees(tree.token_ids[0]):
                self._learn(previous, token_id, trie)
        if self._config.pool_from_text:
            self._learn_text(anchor + 1)

        draft_tree.attach()
        draft_tree.refill(answers[0])
        if self._config.realign:
            draft_tree.overtake(result.new_token_ids)
        draft_tree.step_and_prune()
        draft_tree.drop_endings(self._eos_token_ids)
        draft_tree.trim()

    def state_size(self) -> int:
        """Nodes of the pool."""
        return self._pool.num_nodes

    def _seeds(self, prompt: list[int], rng: random.Random) -> list[list[int]]:
        """Chains to start from: random tokens, or the rarest ones with what follows them."""
        counts = Counter(prompt)
        if self._config.rare_seeds:
            rarest = min(counts.values(), default=0)
            rare = [token_id for token_id, times in counts.items() if times == rarest]
            chosen = rng.sample(rare, min(self._width, len(rare)))
            starts = [prompt.index(token_id) for token_id in chosen]
            return [prompt[start : start + self._config.initial_depth] for start in starts]
        chains = []
        for token_id in rng.sample(list(counts), min(NUM_SEEDS, len(counts))):
            levels = rng.randint(1, self._config.initial_depth)
            chains.append([token_id, *rng.choices(prompt, k=levels - 1)])
        return chains

    def _candidates(self) -> Trie:
        token_ids = self._token_ids
        if self._config.longest_key > 1 and len(token_ids) > 1:
            trie = self._pool.lookup((token_ids[-2], token_ids[-1]))
            if trie:
                return trie
        return self._pool.lookup(token_ids[-1])

    def _add_candidates(self, tree: TokenTree, room: int, max_depth: int) -> None:
        """Add up to `room` nodes of the last token's trie, the best first.

        A node costs its depth plus how many younger siblings it and its ancestors have.
        """
        serial = count()
        heap: list[tuple[int, int, int, int, Trie]] = []

        def offer(parent: int, cost: int, trie: Trie) -> None:
            if tree.depths[parent] < max_depth:
                for rank, token_id in enumerate(reversed(trie), start=cost + 1):
                    heapq.heappush(heap, (rank, next(serial), parent, token_id, trie[token_id]))

        offer(0, 0, self._candidates())
        while heap and tree.num_draft_tokens < room:
            cost, _, parent, token_id, below = heapq.heappop(heap)
            offer(tree.add(parent, token_id), cost, below)

    def _learn(self, previous: int, token_id: int, trie: Trie) -> None:
        self._pool.merge(token_id, trie)
        if self._config.longest_key > 1:
            self._pool.merge((previous, token_id), trie)

    def _learn_verified(self, tree: TokenTree, answers: list[int], previous: int) -> None:
        """Each verified node's answer becomes its child in the trie that it came from.

        Extension: the root's answer too, and every subtree under its own token as well.
        """
        tries: list[Trie] = [{} for _ in answers]
        for node in range(len(answers) - 1, 0, -1):  # the oldest sibling first, as in the pool
            tries[tree.parents[node]][tree.token_ids[node]] = tries[node]
        first = 0 if self._config.rekey_verified else 1
        for trie, answer in zip(tries[first:], answers[first:], strict=True):
            trie[answer] = trie.pop(answer, {})
        self._learn(previous, tree.token_ids[0], tries[0])
        if self._config.rekey_verified:
            for node in range(1, len(tries)):
                parent = tree.token_ids[tree.parents[node]]
                self._learn(parent, tree.token_ids[node], tries[node])

    def _learn_text(self, start: int) -> None:
        """Each token from `start` on ends, or stands within, the continuations of those before."""
        length = self._config.text_continuation
        token_ids = self._token_ids
        for index in range(max(0, start - length), len(token_ids) - 1):
            trie: Trie = {}
            for token_id in reversed(token_ids[index + 1 : index + 1 + length]):
                trie = {token_id: trie}
            self._learn(token_ids[max(0, index - 1)], token_ids[index], trie)
