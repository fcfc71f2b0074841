from dataclasses import replace

import numpy as np
import pytest

from engine.config import GooseConfig
from engine.spec.drafter import DraftLimits, Rows, StepResult
from engine.spec.goose import Goose
from engine.spec.tree import TokenTree
from tests.unit.toy import ROOMY, Toy, assert_tree_is_sound, decode, plan

CONFIG = GooseConfig()


def goose(text: list[int], config: GooseConfig = CONFIG, **bounds: int) -> Goose:
    drafter = Goose(plan(**bounds), config)
    drafter.begin(text)
    return drafter


def teach(drafter: Goose, start: int, *answers: tuple[list[int], list[float]]) -> None:
    """Rows of the prompt from `start`: (ids, probabilities), padded to ten columns."""
    ids = np.full((len(answers), 10), 900, np.int64) + np.arange(10)
    logits = np.full((len(answers), 10), -50.0, np.float32)
    for row, (tokens, shares) in enumerate(answers):
        ids[row, : len(tokens)] = tokens
        logits[row, : len(tokens)] = np.log(shares)
    drafter.observe_prompt(start, Rows(ids, logits))


def children(tree: TokenTree, node: int) -> list[int]:
    return [tree.token_ids[i] for i in range(len(tree)) if tree.parents[i] == node]


def spine_of(tree: TokenTree) -> list[int]:
    """The path that was added first."""
    length = 0
    while length + 1 < len(tree) and tree.parents[length + 1] == length:
        length += 1
    return tree.token_ids[1 : length + 1]


def distinct(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_nothing_known_drafts_nothing():
    assert len(goose([1, 2, 3]).draft(ROOMY)) == 1
    assert len(goose([1]).draft(ROOMY)) == 1


def test_the_anchor_is_the_last_live_token():
    live = [1, 2]
    drafter = goose(live)
    live.append(7)
    assert drafter.draft(ROOMY).token_ids[0] == 7


def test_an_unknown_anchor_gets_a_plain_chain():
    tree = goose([1, 2, 3, 4, 5, 1, 2, 3]).draft(ROOMY)
    assert tree.token_ids == [3, 4, 5, 1, 2, 3]
    assert tree.parents == [-1, 0, 1, 2, 3, 4]


def test_the_longest_ngram_wins_and_its_earliest_occurrence_is_copied():
    text = [9, 2, 3, 4, 70, 1, 2, 3, 4, 71, 1, 2, 3, 4, 72, 1, 2, 3, 4]
    assert goose(text).draft(ROOMY).token_ids[1] == 71  # n = 4, not the earlier n = 3


def test_a_shorter_ngram_serves_where_the_longer_has_none():
    assert goose([2, 3, 4, 70, 0, 2, 3, 4]).draft(ROOMY).token_ids[1] == 70


def test_one_copy_is_at_most_max_chain_long():
    text = [*distinct(100, 40), 100, 101, 102]
    tree = goose(text, replace(CONFIG, extension_threshold=1.0)).draft(ROOMY)
    assert tree.token_ids[1:] == distinct(103, 20)


def test_a_trusted_copy_is_extended_to_its_confidence():
    text = [*distinct(100, 95), 100, 101, 102]
    tree = goose(text, base_budget=100).draft(ROOMY)  # L = 20: confidence 0.9
    assert tree.token_ids[1:] == distinct(103, 90)


def test_an_untrusted_copy_is_not_extended():
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3]  # six tokens: 0.45
    assert goose(text).draft(ROOMY).token_ids[1:] == [4, 5, 6, 1, 2, 3]


def test_full_confidence_keeps_one_proposal_that_does_not_earn_it_and_stops():
    text = [1, 2, 3, 50, 1, 2, 3, 50, *distinct(100, 5), 8, 8, 1, 2, 3]
    config = replace(CONFIG, ngram_lengths=(3,), max_chain=4)
    tree = goose(text, config).draft(ROOMY)
    # 1,2,3 agrees on 50: copy 50,1,2,3; agreed again: 50,1,2,3; and so on up to the limit.
    assert tree.token_ids[1:] == [50, 1, 2, 3] * 25
    text = [1, 2, 3, 50, 51, 52, 53, 54, 55, 1, 2, 3, 50, 61, 62, 1, 2, 3]
    tree = goose(text, replace(config, max_chain=3)).draft(ROOMY)
    # 50,51,52 by consensus, then 53,54,55 by a single witness, kept; then the end.
    assert tree.token_ids[1:] == [50, 51, 52, 53, 54, 55]


@pytest.mark.parametrize("limit", [1, 7, 64, 100])
def test_cyclic_text_terminates_at_the_bounds(limit: int):
    tree = goose([1] * 50, budget=limit, base_budget=limit).draft(ROOMY)
    assert tree.token_ids == [1] * (limit + 1)


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 0.075), (4, 0.3), (7, 0.525), (8, 0.7), (14, 0.8), (20, 0.9)]
)
def test_confidence_without_consensus_grows_with_the_copy(length: int, expected: float):
    ngram = distinct(1, min(3, length))
    text = [*ngram, *distinct(100, length - len(ngram)), *ngram]
    chain, confidence = goose(text, replace(CONFIG, ngram_lengths=(len(ngram),)))._propose(text)
    assert len(chain) == length
    assert confidence == pytest.approx(expected)


def test_confidence_is_zero_without_a_copy_and_one_by_consensus():
    assert goose([1, 2, 3])._propose([1, 2, 3]) == ([], 0.0)
    text = [1, 2, 3, 4, 0, 1, 2, 3, 4, 9, 1, 2, 3]
    assert goose(text)._propose(text)[1] == 1.0


def test_consensus_counts_at_the_longest_matching_length_only():
    text = [1, 2, 3, 4, 7, 0, 2, 3, 4, 7, 5, 1, 2, 3, 4]  # 2,3,4 -> 7 twice; 1,2,3,4 -> 7 once
    assert goose(text)._propose(text)[1] < 1.0


def test_without_a_copy_the_tree_is_branches_only():
    drafter = goose([4, 5, 6])
    teach(drafter, 0, ([7, 8], [0.6, 0.4]), ([6, 9], [0.9, 0.1]))
    drafter._tokens = [*drafter._tokens, 5]
    tree = drafter.draft(ROOMY)
    assert children(tree, 0) == [6, 9]
    assert drafter._spine_length == 0


def test_low_scores_are_not_drafted():
    drafter = goose([5, 6, 5])
    teach(drafter, 0, ([7, 8, 9], [0.98, 0.0101, 0.0099]))
    assert children(drafter.draft(ROOMY), 0) == [7, 8]


def known_anchor(length: int, config: GooseConfig = CONFIG, **bounds: int) -> Goose:
    """A text whose end was followed by `length` distinct tokens before; all its rows are known."""
    body = distinct(100, length - 3)
    text = [1, 2, 3, *body, 1, 2, 3]
    drafter = goose(text, config, **bounds)
    flat = [0.19, 0.17, 0.15, 0.13, 0.11, 0.09, 0.07, 0.05, 0.03, 0.01]
    answers = [([following, *distinct(500, 9)], flat) for following in text[1:]]
    teach(drafter, 0, *answers)
    return drafter


def test_spine_length_is_the_confident_share_of_a_budget_that_grows_with_confidence():
    tree = known_anchor(20).draft(ROOMY)  # c = 0.9: B' = 96, r = 0.95
    assert spine_of(tree)[:20] == [*distinct(100, 17), 1, 2, 3]
    assert len(tree) - 1 <= 60 + int(0.9 * 40)
    tree = known_anchor(7, base_budget=10, budget=10).draft(ROOMY)  # c = 0.525, r = 0.7625
    assert spine_of(tree) == [100, 101, 102, 103, 1, 2, 3]
    tree = known_anchor(4, base_budget=4, budget=4).draft(ROOMY)  # c = 0.3, r = 0.65
    assert spine_of(tree) == [100, 1]


def test_a_low_acceptance_rate_shortens_the_spine():
    drafter = known_anchor(7, base_budget=10, budget=10)
    drafter._spine_rate = 0.1  # r = 0.15 + 0.525 * 0.85
    assert len(spine_of(drafter.draft(ROOMY))) == 5
    drafter._spine_rate = 0.3
    assert len(spine_of(drafter.draft(ROOMY))) == 6


def test_a_sure_long_copy_leaves_no_room_for_branches():
    text = [1] * 30
    drafter = goose(text)
    teach(drafter, 0, *[([1, 2, 3], [0.5, 0.3, 0.2])] * 29)
    tree = drafter.draft(ROOMY)
    assert tree.token_ids == [1] * 101
    assert tree.parents == list(range(-1, 100))


def test_branches_share_their_budget_half_to_the_root_half_harmonically_to_the_spine():
    config = replace(CONFIG, branch_depth=0)  # no growth below the branches
    drafter = known_anchor(4, config, base_budget=24, budget=24)  # c = 0.3, L = 4, 20 branches
    tree = drafter.draft(ROOMY)
    spine = spine_of(tree)
    assert spine == [100, 1, 2, 3]
    following = dict(enumerate(spine))
    branches = [[t for t in children(tree, n) if t != following.get(n)] for n in range(5)]
    # Root: 9 beside the spine. Share 10 over 1 + 1/2 + 1/3 + 1/4: 4, 2, 1, 1.
    assert [len(tokens) for tokens in branches] == [9, 4, 2, 1, 1]
    assert branches[1] == distinct(500, 4)  # the best, without the next spine token
    for node, token in following.items():
        assert children(tree, node).count(token) == 1


def test_branches_stop_growing_at_the_branch_depth():
    drafter = goose([5, 5])
    teach(drafter, 0, ([5], [1.0]))
    assert drafter.draft(ROOMY).depths == [0, 1, 2, 3, 4, 5, 6]


def test_branches_grow_breadth_first_narrower_with_depth_and_with_falling_score():
    drafter = goose([5, 5])
    teach(drafter, 0, (distinct(5, 10), [0.5, 0.3, *[0.025] * 8]))
    tree = drafter.draft(ROOMY)
    assert tree.depths == sorted(tree.depths)
    assert children(tree, 0) == distinct(5, 10)  # as wide as K
    assert children(tree, 1) == distinct(5, 10)  # ceil(50 * 0.5), K // 1
    below = tree.child(1, 5)
    assert below is not None
    assert children(tree, below) == distinct(5, 5)  # K // 2
    assert children(tree, 2) == []  # token 6 was never seen


def test_branches_may_hang_off_a_spine_deeper_than_the_branch_depth_but_do_not_grow_there():
    tree = known_anchor(12).draft(ROOMY)
    spine = len(spine_of(tree))
    assert spine > CONFIG.branch_depth
    deep = [n for n in range(spine + 1, len(tree)) if tree.depths[n] > CONFIG.branch_depth]
    assert deep
    assert all(tree.parents[node] <= spine for node in deep)


@pytest.mark.parametrize(
    "limits",
    [
        DraftLimits(width=10, depth=0, explore_depth=0, budget=100),
        DraftLimits(width=10, depth=1, explore_depth=9, budget=100),
        DraftLimits(width=10, depth=4, explore_depth=9, budget=7),
        DraftLimits(width=1, depth=100, explore_depth=100, budget=100),
        DraftLimits(width=2, depth=100, explore_depth=100, budget=100),
        DraftLimits(width=10, depth=100, explore_depth=100, budget=0),
        DraftLimits(width=10, depth=100, explore_depth=100, budget=1),
    ],
)
def test_limits_are_hard(limits: DraftLimits):
    for length in (4, 8, 20):
        tree = known_anchor(length).draft(limits)
        assert_tree_is_sound(tree, limits)
        assert (len(tree) > 1) == (limits.depth > 0 and limits.budget > 0)


def test_a_named_budget_is_never_exceeded_however_confident():
    tree = goose([1] * 30, budget=5, base_budget=5).draft(ROOMY)
    assert len(tree) == 6


def test_the_spine_rate_is_a_moving_average_of_accepted_shares():
    live = [1, 2, 3, 4, 5, 1, 2, 3]
    drafter = goose(live)
    tree = drafter.draft(ROOMY)  # a chain of five
    rows = Rows(np.zeros((len(tree), 10), np.int64), np.zeros((len(tree), 10), np.float32))
    live += [4, 5, 77]
    drafter.observe(StepResult(tree, rows, [1, 2], [4, 5, 77]))
    assert drafter._spine_rate == pytest.approx(0.7 * 0.5 + 0.3 * 2 / 5)


def test_committed_tokens_are_copied_from():
    live = [1, 2, 3]
    drafter = goose(live)
    tree = drafter.draft(ROOMY)
    rows = Rows(np.zeros((1, 10), np.int64), np.zeros((1, 10), np.float32))
    live += [7, 8, 1, 2, 3]
    drafter.observe(StepResult(tree, rows, [], [7, 8, 1, 2, 3]))
    assert drafter.draft(ROOMY).token_ids[1:6] == [7, 8, 1, 2, 3]


def test_rejected_rows_are_harvested_under_their_own_parents():
    live = [1, 2, 3, 4, 5, 6, 5, 1, 2, 3]
    drafter = goose(live)
    tree = drafter.draft(replace(ROOMY, depth=4))
    ids = np.arange(10) + 100 * np.arange(len(tree))[:, None]
    rows = Rows(ids, np.zeros((len(tree), 10), np.float32))
    live.append(77)
    drafter.observe(StepResult(tree, rows, [], [77]))
    for row, pair in enumerate([(2, 3), (3, 4), (4, 5), (5, 6), (6, 5)]):  # none was accepted
        known = drafter._adjacency.successors(*pair)
        assert known is not None
        assert known[0] == list(range(100 * row, 100 * row + 10))


def test_output_equals_plain_decoding_and_needs_fewer_steps():
    toy = Toy(vocab=40, top_k=10)
    live, results = decode(Goose(plan(), CONFIG), [1, 2, 3], toy, steps=60)
    assert live[3:] == toy.continuation([1, 2, 3], len(live) - 3)
    assert len(live) - 3 > 3 * len(results)


def test_the_same_request_gets_the_same_trees():
    runs = [decode(Goose(plan(), CONFIG), [1, 2, 3], Toy(40, 10), 30)[1] for _ in range(2)]
    assert [r.tree.token_ids for r in runs[0]] == [r.tree.token_ids for r in runs[1]]


def test_only_one_end_of_a_long_context_is_read():
    class Counting(list[int]):
        read = 0

        def __getitem__(self, key):
            got = super().__getitem__(key)
            Counting.read += len(got) if isinstance(key, slice) else 1
            return got

    def tokens_read(length: int) -> int:
        rng = np.random.default_rng(0)
        live = Counting([*rng.integers(9, 50_000, length).tolist(), 1, 2, 3, 4, 1, 2, 3])
        drafter = goose(live)
        tree = drafter.draft(ROOMY)
        rows = Toy(50, 10).rows([[token] for token in tree.token_ids])
        list.append(live, 9)
        Counting.read = 0
        drafter.observe(StepResult(tree, rows, [], [9]))
        drafter.draft(ROOMY)
        return Counting.read

    assert tokens_read(1_000) == tokens_read(16_000)
