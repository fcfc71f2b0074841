from collections import Counter
from dataclasses import replace

import numpy as np

from engine.config import TokenRecyclingConfig
from engine.spec.drafter import Rows, StepResult
from engine.spec.successor_matrix import SuccessorMatrix
from engine.spec.token_recycling import TEMPLATE, TokenRecycling
from engine.spec.tree import TokenTree
from tests.unit.toy import ROOMY, Toy, assert_tree_is_sound, decode, plan

VOCAB = 50


def full_matrix() -> SuccessorMatrix:
    """Row of t: t + 1, ..., t + 8, modulo the vocabulary."""
    matrix = SuccessorMatrix(8)
    tokens = list(range(VOCAB))
    matrix.write(tokens, (np.array(tokens)[:, None] + np.arange(1, 9)) % VOCAB)
    return matrix


def drafter(matrix: SuccessorMatrix | None = None) -> TokenRecycling:
    recycling = TokenRecycling(plan(), TokenRecyclingConfig(), matrix)
    recycling.begin([4, 5])
    return recycling


def test_the_template_has_the_published_counts():
    assert [sum(counts) for counts in TEMPLATE] == [8, 21, 25, 15, 8, 3]
    assert all(
        len(below) <= sum(above) for above, below in zip(((1,), *TEMPLATE), TEMPLATE, strict=False)
    )
    ranks = Counter(rank for counts in TEMPLATE for count in counts for rank in range(count))
    assert [ranks[rank] for rank in range(8)] == [41, 13, 8, 5, 4, 3, 3, 3]


def test_a_known_vocabulary_fills_the_whole_template():
    tree = drafter(full_matrix()).draft(ROOMY)
    assert tree.num_draft_tokens == 80
    assert Counter(tree.depths) == {0: 1, 1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    rank = Counter[int]()
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        rank[parent] += 1
        assert tree.token_ids[node] == (tree.token_ids[parent] + rank[parent]) % VOCAB


def test_an_unseen_token_has_no_children():
    assert len(drafter().draft(ROOMY)) == 1
    matrix = SuccessorMatrix(8)
    matrix.write([5], np.arange(10, 18)[None])
    assert drafter(matrix).draft(ROOMY).token_ids == [5, *range(10, 18)]


def test_an_unseen_sibling_leaves_its_places_empty():
    matrix = SuccessorMatrix(8)
    matrix.write([5, 11], np.array([range(10, 18), range(20, 28)]))
    tree = drafter(matrix).draft(ROOMY)
    assert tree.parents[9:] == [2, 2, 2, 2]  # the second node's four places
    assert tree.token_ids[9:] == [20, 21, 22, 23]


def test_every_row_of_the_tree_is_learned_and_the_last_one_of_a_token_stays():
    recycling = drafter()
    tree = TokenTree.anchored(5)
    for token in (6, 7):
        tree.add(tree.add(0, token), 6)
    ids = np.arange(len(tree))[:, None] * 10 + np.arange(9)
    rows = Rows(ids, np.zeros(ids.shape, np.float32))
    recycling.observe(StepResult(tree, rows, [], [9]))
    read = recycling._matrix.read
    assert read(5) == list(range(8))
    assert read(6) == list(range(40, 48))
    assert read(7) == list(range(30, 38))


def test_a_given_matrix_outlives_the_request():
    toy = Toy(vocab=30, top_k=8, order=1)
    matrix = SuccessorMatrix(8)
    decode(TokenRecycling(plan(), TokenRecyclingConfig(), matrix), [1], toy, steps=20)
    warm = TokenRecycling(plan(), TokenRecyclingConfig(), matrix)
    _, [first] = decode(warm, [1], toy, steps=1)
    _, [cold] = decode(TokenRecycling(plan(), TokenRecyclingConfig()), [1], toy, steps=1)
    assert len(first.path) == 6
    assert len(cold.tree) == 1


def test_limits_are_hard():
    for limits in (
        replace(ROOMY, depth=0),
        replace(ROOMY, depth=2),
        replace(ROOMY, width=2),
        replace(ROOMY, budget=11),
        replace(ROOMY, budget=0),
    ):
        tree = drafter(full_matrix()).draft(limits)
        assert_tree_is_sound(tree, limits)
        assert (len(tree) > 1) == (limits.depth > 0 and limits.budget > 0)


def test_output_equals_plain_decoding():
    recycling = TokenRecycling(plan(), TokenRecyclingConfig())
    assert recycling.needs.top_k == 8
    assert not recycling.needs.prompt_rows
    toy = Toy(vocab=30, top_k=8, order=2)
    live, _ = decode(recycling, [1, 2, 3], toy, steps=40)
    assert live[3:] == toy.continuation([1, 2, 3], len(live) - 3)
