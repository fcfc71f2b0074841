"""Goose: a copied spine with branches, from two token sources of very different quality.

Copies from the context are right several times more often than the model's own successor lists
(median six times in the paper), so equal depth for both wastes nodes. Goose makes the copy a long
spine and hangs wide, shallow branches of successors on it (arXiv 2604.02047, Algorithm 1).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil

from engine.config import GooseConfig
from engine.spec.adjacency import Adjacency
from engine.spec.context_index import ContextIndex
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan

Branch = tuple[int, float]  # a node off the spine and the score that its source gave it


class Goose:
    """The anisotropic drafter of one request.

    Where this differs from the paper: budgets count nodes without the anchor; they are hard caps;
    `width` bounds all children of a node, the spine's included; the anchor's own pair of tokens is
    learned in every pass.
    """

    def __init__(self, plan: SpeculationPlan, config: GooseConfig) -> None:
        self._plan = plan
        self._config = config
        self._width = min(plan.width, config.width)
        self._lengths = sorted(config.ngram_lengths, reverse=True)
        self.begin(())

    @property
    def needs(self) -> Needs:
        """The best `width` tokens of every row, the prompt's included."""
        return Needs(top_k=self._width, prompt_rows=True)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Start cold on a request's live token list."""
        self._tokens = token_ids
        self._index = ContextIndex(token_ids, self._lengths)
        self._adjacency = Adjacency(self._width, self._config.max_bigrams)
        self._spine_rate = self._config.ema_initial  # mean accepted share of recent spines
        self._spine_length = 0  # of the tree in flight; its nodes are 1 .. length

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Learn what the target would say after each prompt token."""
        tokens = self._tokens[start : start + len(rows.token_ids)]
        before = [self._tokens[start - 1] if start else -1]
        self._adjacency.observe([*before, *tokens[:-1]], tokens, rows)

    def observe(self, result: StepResult) -> None:
        """Learn from all rows, and how much of the spine was accepted."""
        tree = result.tree
        anchor = len(self._tokens) - len(result.new_token_ids) - 1
        before = [self._tokens[anchor - 1] if anchor else -1]
        before += [tree.token_ids[parent] for parent in tree.parents[1:]]
        self._adjacency.observe(before, tree.token_ids, result.rows)
        self._index.update()
        if self._spine_length:
            accepted = sum(node <= self._spine_length for node in result.path)
            alpha = self._config.ema_alpha
            self._spine_rate += alpha * (accepted / self._spine_length - self._spine_rate)

    def state_size(self) -> int:
        """N-grams of the text and rows of successors."""
        return len(self._index) + len(self._adjacency)

    def draft(self, limits: DraftLimits) -> TokenTree:
        """A spine with branches; only a spine if nothing is known to follow the anchor."""
        tree = TokenTree.anchored(self._tokens[-1])
        chain, confidence = self._propose(self._tokens)
        budget = self._budget(confidence, limits)
        is_known = self._adjacency.successors(self._before_anchor, tree.token_ids[0]) is not None
        share = self._spine_ratio(confidence) if is_known else 1.0
        length = min(int(budget * share), limits.depth)
        spine = self._extend(chain, confidence, length)[:length]
        for node, token in enumerate(spine):
            tree.add(node, token)
        self._spine_length = len(spine)
        if is_known and limits.depth:
            self._branch(tree, budget - len(spine), limits)
        return tree

    # Spine: copies from the context.

    def _propose(self, text: Sequence[int]) -> tuple[list[int], float]:
        """What followed the earliest occurrence of the longest known suffix; how sure that is."""
        for n in self._lengths:
            gram = tuple(text[-n:])
            start = self._index.first(gram)
            if start is not None:
                chain = list(self._tokens[start : start + self._config.max_chain])
                return chain, 1.0 if self._index.agrees(gram) else self._confidence(len(chain))
        return [], 0.0

    def _confidence(self, length: int) -> float:
        """By the length of a copy that no second occurrence confirms."""
        long, longest = self._config.long_match, self._config.max_chain
        if length < long:
            return 0.6 * length / long
        return min(0.9, 0.7 + 0.2 * (length - long) / max(1, longest - long))

    def _extend(self, chain: list[int], confidence: float, length: int) -> list[int]:
        """Go on copying from the end of the copy, if it is trusted, up to about `length` tokens."""
        if confidence <= self._config.extension_threshold:
            return chain
        length = min(length, int(self._config.max_extended_chain * confidence))
        reach = self._lengths[0]
        while len(chain) < length:
            more, sureness = self._propose([*self._tokens[-reach:], *chain][-reach:])
            chain += more[: length - len(chain)]
            if not more or (confidence == 1.0 and sureness < 1.0):
                break
        return chain

    def _budget(self, confidence: float, limits: DraftLimits) -> int:
        """Nodes of this step: grows with confidence, never above what was allowed."""
        base = self._plan.base_budget
        grown = base + int(confidence * max(0, self._config.max_budget - base))
        return min(grown, self._plan.budget, limits.budget)

    def _spine_ratio(self, confidence: float) -> float:
        """The spine's largest share of the nodes, by how recent spines fared and confidence."""
        rate = self._spine_rate
        tiers = self._config.spine_tiers
        tier = next((ratio for below, ratio in tiers if rate < below), tiers[-1][1])
        return tier + confidence * (1.0 - tier)

    # Branches: successors that the target itself named.

    def _branch(self, tree: TokenTree, budget: int, limits: DraftLimits) -> None:
        """Spend `budget` nodes: on the root, along the spine, then below these branches."""
        width = min(limits.width, self._width)
        last = self._spine_length
        spine_share = 0
        if last and budget > 0:
            spine_share = max(1, int(budget * self._config.spine_branch_ratio))
        room = width - 1 if last else width
        queue = deque(self._attach(tree, 0, min(room, budget - spine_share)))
        for node, count in enumerate(_harmonic_split(spine_share, last), start=1):
            if node < limits.depth:
                room = width - 1 if node < last else width
                queue.extend(self._attach(tree, node, min(room, count)))
        remaining = budget - len(queue)
        depth_limit = min(self._config.branch_depth, limits.depth)
        while queue and remaining > 0:
            node, score = queue.popleft()
            depth = tree.depths[node]
            if depth < depth_limit:
                count = min(ceil(remaining * score), max(1, width // depth), remaining)
                branches = self._attach(tree, node, max(1, count))
                queue.extend(branches)
                remaining -= len(branches)

    def _attach(self, tree: TokenTree, node: int, count: int) -> list[Branch]:
        """Hang up to `count` of a node's best successors below it, beside its spine child."""
        tokens, parent = tree.token_ids, tree.parents[node]
        previous = tokens[parent] if parent >= 0 else self._before_anchor
        branches: list[Branch] = []
        known = self._adjacency.successors(previous, tokens[node])
        for token, score in zip(*known, strict=True) if known else ():
            if len(branches) >= count or score < self._config.min_score:
                break
            if tree.child(node, token) is None:
                branches.append((tree.add(node, token), score))
        return branches

    @property
    def _before_anchor(self) -> int:
        return self._tokens[-2] if len(self._tokens) > 1 else -1


def _harmonic_split(share: int, nodes: int) -> Iterator[int]:
    """`share` branches over spine nodes 1, 2, ..., in proportion to 1/i (Proposition 2)."""
    total = sum(1.0 / i for i in range(1, nodes + 1))
    left = share
    for i in range(1, nodes + 1):
        count = min(left, max(1, int(share / (i * total))))
        left -= count
        yield count
