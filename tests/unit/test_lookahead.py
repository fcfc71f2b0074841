"""Lookahead decoding through the drafter protocol: its window's shape, its n-grams, its text."""

import random

import pytest

from engine.config import LookaheadConfig
from engine.spec.drafter import DraftLimits, Needs
from engine.spec.lookahead import Lookahead
from engine.spec.tree import EXPLORE, TokenTree
from tests.unit.toy_tree import (
    LIMITS,
    generate,
    greedy,
    last_token_model,
    plan,
    step,
    texture_model,
)

W, N, G = 5, 4, 3
CONFIG = LookaheadConfig(window=W, ngram=N, guesses=G)
PROMPT = random.Random(1).choices(range(40), k=60)


def begun(tokens: list[int], config: LookaheadConfig = CONFIG, seed: int = 7, **bounds):
    drafter = Lookahead(plan("lookahead", **bounds), config, seed)
    drafter.begin(tokens)
    return drafter


def window(tree: TokenTree) -> list[int]:
    return [node for node in range(len(tree)) if tree.kinds[node] == EXPLORE]


def test_it_reads_the_top_token_of_each_row() -> None:
    assert begun(PROMPT).needs == Needs(top_k=1)


@pytest.mark.parametrize("from_text", [False, True])
@pytest.mark.parametrize("config", [CONFIG, LookaheadConfig()], ids=["small", "published"])
def test_texts_are_the_same_as_without_drafting_and_come_faster(config, from_text: bool) -> None:
    config = LookaheadConfig(config.window, config.ngram, config.guesses, pool_from_text=from_text)
    for model in (last_token_model(), texture_model()):
        drafter = Lookahead(plan("lookahead"), config, 7)
        prompt = [token_id % 40 for token_id in PROMPT]
        text, stats = generate(drafter, prompt, model, 200)
        assert text == greedy(model, prompt, len(text))
        assert stats.tau > 1.1


def test_the_warm_up_fills_one_row_per_pass() -> None:
    tokens, drafter = list(PROMPT), begun(PROMPT)
    drafter.begin(tokens)
    first = drafter.draft(LIMITS)
    assert first.parents == list(range(-1, W + N - 3))
    assert set(first.token_ids) <= set(PROMPT)
    sizes = []
    for _ in range(N):
        tree = step(drafter, tokens, texture_model()).tree
        assert len(tree) > 1 + tree.num_draft_tokens
        sizes.append(len(window(tree)))
    assert sizes == [W + N - 3, 2 * (W + 1) - 1, (N - 1) * W - 1, (N - 1) * W - 1]


def test_window_elements_see_row_0_up_to_their_column_and_their_column_above() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for _ in range(10):
        step(drafter, tokens, texture_model())
    tree = drafter.draft(LIMITS)
    nodes = window(tree)
    assert len(nodes) == (N - 1) * W - 1

    # Element (row, column), the anchor being (0, 0).
    grid = {(0, 0): 0} | {(0, column): nodes[column - 1] for column in range(1, W)}
    rest = iter(nodes[W - 1 :])
    grid |= {(row, column): next(rest) for row in range(1, N - 1) for column in range(W)}
    mask = tree.ancestor_mask()
    for (row, column), node in grid.items():
        visible = {grid[0, left] for left in range(column + 1)}
        visible |= {grid[above, column] for above in range(1, row + 1)}
        assert {int(seen) for seen in mask[node].nonzero()[0]} == visible
        assert tree.depths[node] == row + column


def test_the_window_slides_by_one_and_each_column_is_harvested() -> None:
    model, tokens = texture_model(), list(PROMPT)
    drafter = begun(tokens)
    for _ in range(10):
        step(drafter, tokens, model)
    for _ in range(20):
        rows = [list(row) for row in drafter._rows]
        anchor = tokens[-1]
        step(drafter, tokens, model)
        assert drafter._rows[0] == rows[1][1:]
        assert drafter._rows[1:-1] == rows[2:]
        newest = drafter._rows[-1]
        assert [len(row) for row in drafter._rows] == [W - 1, *[W] * (N - 2)]
        for column, key in enumerate([anchor, *rows[0]]):
            gram = (*(row[column] for row in rows[1:]), newest[column])
            assert len(gram) == N - 1
            assert gram in drafter._pool.lookup(key) or column < W - G


def test_after_the_warm_up_the_window_holds_what_the_model_says() -> None:
    model, tokens = last_token_model(), list(PROMPT)
    drafter = begun(tokens)
    for _ in range(3 * N):
        step(drafter, tokens, model)
    tree = drafter.draft(LIMITS)
    for node in window(tree)[W:]:  # row 1's column 0 was drafted below what the text replaced
        assert tree.token_ids[node] == model([tree.token_ids[tree.parents[node]]])


def test_candidates_are_the_anchors_ngrams_newest_first_and_wait_for_the_window() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for gram in ((1, 2, 3), (1, 2, 4), (5, 6, 7)):
        drafter._pool.insert(tokens[-1], gram)
    assert drafter.draft(LIMITS).num_draft_tokens == 0
    for _ in range(N - 2):
        step(drafter, tokens, texture_model())
    for gram in ((1, 2, 3), (1, 2, 4), (5, 6, 7)):
        drafter._pool.insert(tokens[-1], gram)
    tree = drafter.draft(LIMITS)
    assert tree.token_ids[1:8] == [5, 6, 7, 1, 2, 4, 3]
    assert tree.num_draft_tokens == 7


def test_a_pool_that_knows_the_future_gives_a_whole_ngram_and_the_bonus() -> None:
    model, tokens = texture_model(), list(PROMPT)
    drafter = begun(tokens)
    for _ in range(N):
        step(drafter, tokens, model)
    drafter._pool.insert(tokens[-1], tuple(greedy(model, tokens, N - 1)))
    assert len(step(drafter, tokens, model).new_token_ids) == N


def test_text_feeds_the_pool_only_if_asked() -> None:
    config = LookaheadConfig(window=W, ngram=N, guesses=G, pool_from_text=True)
    tokens = [1, 2, 3, 4, 5, 6]
    assert begun(tokens, config)._pool.lookup(3) == [(4, 5, 6)]
    assert begun(tokens)._pool.lookup(3) == []
    drafter = begun(tokens, config)
    step(drafter, tokens, lambda _: 9)
    assert drafter._pool.lookup(4) == [(5, 6, 9)]


@pytest.mark.parametrize("budget", [2, 6, 12, 30, 59, 118, 119, 128])
@pytest.mark.parametrize("depth", [1, 2, 6])
def test_the_window_shrinks_to_the_plan(budget: int, depth: int) -> None:
    tokens = [token_id % 8 for token_id in PROMPT]
    drafter = begun(tokens, LookaheadConfig(), budget=budget, depth=depth)
    limits = DraftLimits(10, depth, 100, budget)
    accepted = [len(step(drafter, tokens, last_token_model(8), limits).path) for _ in range(40)]
    assert sum(accepted) > 0 or drafter._width == 1  # column 0 alone is not what the text says
    assert max(accepted) <= depth


def test_a_window_that_does_not_fit_is_left_out_and_kept() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for _ in range(10):
        step(drafter, tokens, texture_model())
    rows = drafter._rows
    for tight in (
        DraftLimits(4, 6, 64, (N - 1) * W - 2),
        DraftLimits(4, 6, W + N - 4, 128),
        DraftLimits(4, 0, 64, 128),
    ):
        assert not window(step(drafter, tokens, texture_model(), tight).tree)
        assert drafter._rows == rows
    assert window(step(drafter, tokens, texture_model(), DraftLimits(4, 6, W + N - 3, 128)).tree)


def test_trees_depend_on_the_seed_only() -> None:
    first, second, other = (begun(PROMPT, seed=seed).draft(LIMITS) for seed in (7, 7, 8))
    assert first == second != other


def test_window_elements_predict_their_own_positions() -> None:
    """A model of positions, and a text that comes one token at a time: what the window expects."""
    tokens, model = [3] * 20, len
    drafter = begun(tokens)
    for index in range(12):
        drafter._pool._lists.clear()
        tree = step(drafter, tokens, model).tree
        assert len(tree) == 1 + len(window(tree))
        if index >= N - 2:
            last = len(tokens) - 2
            assert [tree.token_ids[node] - tree.depths[node] for node in window(tree)[W - 1 :]] == (
                [last] * ((N - 2) * W)
            )


def test_candidates_may_use_the_room_of_a_window_that_does_not_fit() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for _ in range(N):
        step(drafter, tokens, texture_model())
    drafter._pool.insert(tokens[-1], (1, 2, 3))
    tree = drafter.draft(DraftLimits(4, 6, 64, 3))
    assert tree.token_ids == [tokens[-1], 1, 2, 3]
