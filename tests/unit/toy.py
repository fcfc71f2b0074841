"""A toy target model for drafter tests: the next tokens are a pure function of the last few."""

from collections.abc import Sequence

import numpy as np

from engine.spec.drafter import Drafter, DraftLimits, Rows, StepResult
from engine.spec.tree import VERIFY, TokenTree
from engine.types import SpeculationPlan

ROOMY = DraftLimits(width=10, depth=100, explore_depth=100, budget=100)


def plan(
    width: int = 10, depth: int = 100, budget: int = 100, base_budget: int = 60
) -> SpeculationPlan:
    return SpeculationPlan("toy", width, depth, budget, base_budget)


class Toy:
    """Answers with a fixed pseudo-random row per last `order` tokens."""

    def __init__(self, vocab: int, top_k: int, order: int = 2, seed: int = 0) -> None:
        self.vocab, self.top_k, self.order, self.seed = vocab, top_k, order, seed
        self._known: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def row(self, text: Sequence[int]) -> tuple[list[int], list[float]]:
        state = tuple(text[-self.order :])
        if state not in self._known:
            rng = np.random.default_rng((self.seed, *state))
            ids = rng.permutation(self.vocab)[: self.top_k]
            logits = -np.sort(-rng.normal(0.0, 3.0, self.top_k))
            self._known[state] = ids.tolist(), logits.tolist()
        return self._known[state]

    def rows(self, texts: Sequence[Sequence[int]]) -> Rows:
        ids, logits = zip(*map(self.row, texts), strict=True)
        return Rows(np.array(ids, np.int64), np.array(logits, np.float32))

    def continuation(self, text: Sequence[int], length: int) -> list[int]:
        """Plain greedy decoding."""
        live = list(text)
        for _ in range(length):
            live.append(self.row(live)[0][0])
        return live[len(text) :]


def greedy_walk(tree: TokenTree, next_ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """The accepted node indices and the committed tokens, the bonus token last."""
    node, path, tokens = 0, [], []
    while True:
        tokens.append(next_ids[node])
        child = tree.child(node, next_ids[node])
        if child is None:
            return path, tokens
        path.append(child)
        node = child


def step(drafter: Drafter, live: list[int], toy: Toy, limits: DraftLimits = ROOMY) -> StepResult:
    """Draft, verify greedily, commit to `live`, let the drafter observe."""
    tree = drafter.draft(limits)
    texts = [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
    rows = toy.rows(texts)
    path, tokens = greedy_walk(tree, rows.token_ids[:, 0].tolist())
    live.extend(tokens)
    result = StepResult(tree, rows, path, tokens)
    drafter.observe(result)
    return result


def decode(
    drafter: Drafter, prompt: Sequence[int], toy: Toy, steps: int, limits: DraftLimits = ROOMY
) -> tuple[list[int], list[StepResult]]:
    """Run a request for `steps` steps. Returns the live token list and every step's result."""
    live = list(prompt)
    drafter.begin(live)
    if drafter.needs.prompt_rows and len(live) > 1:
        drafter.observe_prompt(0, toy.rows([live[: i + 1] for i in range(len(live) - 1)]))
    results = []
    for _ in range(steps):
        results.append(step(drafter, live, toy, limits))
        assert_tree_is_sound(results[-1].tree, limits)
    return live, results


def assert_tree_is_sound(tree: TokenTree, limits: DraftLimits) -> None:
    """What every tree must satisfy, whoever drafted it."""
    children: dict[int, list[int]] = {}
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1
        if tree.kinds[node] == VERIFY:
            assert tree.depths[node] <= limits.depth
            children.setdefault(parent, []).append(tree.token_ids[node])
    for tokens in children.values():
        assert len(tokens) == len(set(tokens)) <= limits.width
    assert len(tree) - 1 <= limits.budget
