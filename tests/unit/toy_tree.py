"""A toy target model and the greedy loop around a drafter, for drafters' tests without torch."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from engine.spec.drafter import Drafter, DraftLimits, Rows, StepResult
from engine.spec.tree import EXPLORE, VERIFY, TokenTree
from engine.spec.walk import walk
from engine.types import SpecStats, SpeculationPlan

Model = Callable[[Sequence[int]], int]  # visible tokens -> the top-1 next token

LIMITS = DraftLimits(width=4, depth=6, explore_depth=64, budget=128)


def plan(method: str = "ptd", width: int = 4, depth: int = 6, budget: int = 128) -> SpeculationPlan:
    return SpeculationPlan(method, width, depth, budget, budget)


def last_token_model(vocab: int = 50, seed: int = 3) -> Model:
    """The next token is a pure function of the last one: a permutation's long cycle."""
    order = list(range(vocab))
    random.Random(seed).shuffle(order)
    after = {order[i]: order[(i + 1) % vocab] for i in range(vocab)}
    return lambda tokens: after[tokens[-1]]


def texture_model(vocab: int = 40, noise: float = 0.2, seed: int = 5) -> Model:
    """Mostly a function of the last two tokens; now and then of the last six."""

    def model(tokens: Sequence[int]) -> int:
        far = random.Random(hash((seed, *tokens[-6:])))
        if far.random() < noise:
            return far.randrange(vocab)
        return random.Random(hash((seed, *tokens[-2:]))).randrange(vocab)

    return model


def greedy(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """Plain decoding."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model(tokens))
    return tokens[len(prompt) :]


def answers(tree: TokenTree, tokens: Sequence[int], model: Model) -> list[int]:
    """What the model says at each node, given the committed text and the node's own path."""
    return [
        model([*tokens, *(tree.token_ids[index] for index in tree.path(node))])
        for node in range(len(tree))
    ]


def rows_of(top: Sequence[int]) -> Rows:
    return Rows(
        np.array(top, dtype=np.int64).reshape(-1, 1), np.zeros((len(top), 1), dtype=np.float32)
    )


def check_tree(tree: TokenTree, limits: DraftLimits) -> None:
    """What every drafter owes the engine."""
    assert len(tree) - 1 <= limits.budget
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1
        verified = tree.kinds[node] == VERIFY
        assert tree.depths[node] <= (limits.depth if verified else limits.explore_depth)
        if parent > 0:
            assert tree.kinds[parent] == tree.kinds[node], "the two parts never see each other"
    assert tree.num_explored_tokens == tree.kinds.count(EXPLORE)


def step(
    drafter: Drafter, tokens: list[int], model: Model, limits: DraftLimits = LIMITS
) -> StepResult:
    """Draft, verify greedily, commit to `tokens`, observe."""
    tree = drafter.draft(limits)
    assert tree.token_ids[0] == tokens[-1]
    check_tree(tree, limits)
    top = answers(tree, tokens, model)
    outcome = walk(tree, lambda node: top[node], lambda token_id: False)
    tokens.extend(outcome.token_ids)
    result = StepResult(tree, rows_of(top), outcome.path, outcome.token_ids)
    drafter.observe(result)
    return result


def generate(
    drafter: Drafter, prompt: Sequence[int], model: Model, count: int
) -> tuple[list[int], SpecStats]:
    """At least `count` tokens, with the counters that the engine keeps."""
    tokens = list(prompt)
    drafter.begin(tokens)
    stats = SpecStats()
    while len(tokens) < len(prompt) + count:
        result = step(drafter, tokens, model)
        hit = result.tree.num_draft_tokens > 0
        stats += SpecStats(
            steps=1,
            drafts=int(hit),
            draft_tokens=result.tree.num_draft_tokens,
            explored_tokens=result.tree.num_explored_tokens,
            accepted_tokens=len(result.path),
            hit_tokens=len(result.new_token_ids) * hit,
            tokens=len(result.new_token_ids),
        )
    return tokens[len(prompt) :], stats
