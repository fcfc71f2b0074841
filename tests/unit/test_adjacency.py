import numpy as np
import pytest

from engine.spec.adjacency import Adjacency
from engine.spec.drafter import Rows


def rows(*answers: list[int]) -> Rows:
    """Rows with logits 0, -1, -2, ..."""
    ids = np.array(answers, np.int64)
    return Rows(ids, np.tile(-np.arange(ids.shape[1], dtype=np.float32), (len(ids), 1)))


def ids(adjacency: Adjacency, previous: int, token: int) -> list[int] | None:
    known = adjacency.successors(previous, token)
    return None if known is None else known[0]


def test_an_unseen_token_has_no_successors():
    assert Adjacency(3, 100).successors(1, 2) is None


def test_scores_are_the_softmax_of_the_row_that_gave_the_ids():
    adjacency = Adjacency(3, 100)
    logits = np.array([[5.0, 4.0, 1.0]], np.float32)
    adjacency.observe([1], [2], Rows(np.array([[7, 8, 9]]), logits))
    known = adjacency.successors(1, 2)
    assert known is not None
    assert known[0] == [7, 8, 9]
    assert known[1] == pytest.approx(np.exp(logits[0]) / np.exp(logits[0]).sum())


def test_columns_beyond_the_width_change_nothing():
    wide, narrow = Adjacency(2, 100), Adjacency(2, 100)
    wide.observe([1], [2], rows([7, 8, 9]))
    narrow.observe([1], [2], rows([7, 8]))
    assert wide.successors(1, 2) == narrow.successors(1, 2)


def test_two_tokens_know_better_than_one():
    adjacency = Adjacency(2, 100)
    adjacency.observe([1, 4], [2, 2], rows([7, 8], [5, 6]))
    assert ids(adjacency, 1, 2) == [7, 8]
    assert ids(adjacency, 4, 2) == [5, 6]
    assert ids(adjacency, 9, 2) == [5, 6]


def test_of_a_token_seen_twice_in_one_pass_the_last_row_stays():
    adjacency = Adjacency(2, 100)
    adjacency.observe([1, 3, 1], [2, 0, 2], rows([7, 8], [4, 4], [5, 6]))
    assert ids(adjacency, 1, 2) == ids(adjacency, 9, 2) == [5, 6]


def test_later_passes_win():
    adjacency = Adjacency(2, 100)
    adjacency.observe([1], [2], rows([7, 8]))
    adjacency.observe([1], [2], rows([5, 6]))
    assert ids(adjacency, 1, 2) == [5, 6]


def test_the_start_of_a_text_is_a_previous_token_like_others():
    adjacency = Adjacency(2, 100)
    adjacency.observe([-1, 3], [3, 3], rows([7, 8], [5, 6]))
    assert ids(adjacency, -1, 3) == [7, 8]
    assert ids(adjacency, 3, 3) == ids(adjacency, 9, 3) == [5, 6]


def test_an_empty_pass_teaches_nothing():
    adjacency = Adjacency(2, 100)
    adjacency.observe([], [], Rows(np.empty((0, 2), np.int64), np.empty((0, 2), np.float32)))
    assert adjacency.successors(0, 0) is None


@pytest.mark.parametrize("max_keys", [1, 3, 300])
def test_the_longest_unwritten_keys_leave_first(max_keys: int):
    adjacency = Adjacency(2, max_keys)
    adjacency.observe([1000], [0], rows([0, 1]))
    for token in range(1, max_keys):
        adjacency.observe([1000], [token], rows([token, token + 1]))
    adjacency.observe([1000], [0], rows([0, 2]))  # refreshed: now the youngest
    adjacency.observe([1000], [9999], rows([3, 4]))
    gone = 1 if max_keys > 1 else 0
    assert adjacency.successors(1000, gone) is None
    assert ids(adjacency, 1000, 9999) == [3, 4]
    if max_keys > 1:
        assert ids(adjacency, 1000, 0) == [0, 2]
