"""The sources of `auto`: what they name, with codes that their priors cover."""

import random

import numpy as np
import pytest

from engine.spec.adjacency_source import AdjacencySource, AdjacencyView
from engine.spec.answer_cache import AnswerCache
from engine.spec.bigrams import Bigrams
from engine.spec.context_source import ContextSource
from engine.spec.context_trie import ContextTrie
from engine.spec.drafter import Rows
from engine.spec.packed_rows import packer
from engine.spec.pool import Pool
from engine.spec.pool_source import PoolSource
from engine.spec.token_source import NUM_CODES, NUM_SILENT


def rows(*ids: list[int]) -> Rows:
    logits = np.tile(np.linspace(4.0, 0.0, len(ids[0]), dtype=np.float32), (len(ids), 1))
    return Rows(np.array(ids, np.int64), logits)


def named(source, state) -> list[int]:
    return [token for token, _ in source.propose(state)[1]]


def assert_codes_are_sound(source, state) -> None:
    silent, found = source.propose(state)
    assert 0 <= silent < NUM_SILENT
    assert len({token for token, _ in found}) == len(found)
    for _, code in found:
        assert NUM_SILENT <= code < len(source.priors) <= NUM_CODES
        assert 0.0 < source.priors[code] < 1.0


def test_every_code_has_a_prior() -> None:
    rng = random.Random(2)
    text = [rng.randrange(12) for _ in range(400)]
    trie = ContextTrie(text, 6)
    context = ContextSource(trie)
    adjacency = AdjacencySource(4, 50)
    adjacency.count(text)
    pool = Pool(30, 100, 8, refresh=True)
    past = PoolSource(pool, lambda: text)
    for _ in range(300):
        tail = (rng.randrange(9), rng.randrange(9), rng.randrange(9))
        row = Rows(
            np.array([rng.sample(range(12), 4)], np.int64),
            -np.sort(-np.random.default_rng(rng.randrange(99)).normal(0, 4, (1, 4))).astype("f4"),
        )
        adjacency.observe([tail], row)
        pool.insert(rng.randrange(12), [rng.randrange(12) for _ in range(4)])
        for source in (context, adjacency, past):
            adjacency.start(tail)
            state = source.anchor()
            for _ in range(3):
                assert_codes_are_sound(source, state)
                state = source.advance(state, rng.randrange(12))


def test_longer_tails_win_and_shorter_ones_add() -> None:
    source = AdjacencySource(2, 9)
    source.observe([(1, 2, 3), (9, 2, 3), (9, 9, 3)], rows([20, 21], [22, 21], [23, 20]))
    by_three = dict(source.propose((1, 2, 3))[1])
    assert set(by_three) == {20, 21, 22, 23}
    assert by_three[22] != dict(source.propose((5, 2, 3))[1])[22], "an addition has its own code"
    assert set(named(source, (5, 2, 3))) == {22, 21, 23, 20}
    assert set(named(source, (5, 5, 3))) == {23, 20}
    assert named(source, (5, 2, 3))[0] != named(source, (5, 5, 4))


def test_a_token_without_a_row_borrows_from_another_in_its_place() -> None:
    source = AdjacencySource(2, 9)
    assert source.propose((1, 2, 3)) == (0, [])
    source.observe([(1, 2, 4)], rows([30, 31]))
    assert set(named(source, (1, 2, 3))) == {30, 31}
    source.count([7, 7, 8])
    assert set(named(source, (1, 2, 3))) == {30, 31, 7, 8}
    assert named(source, (9, 9, 9)) == [7, 8], "the most frequent first"


def test_a_token_without_a_row_is_known_from_the_vocabulary() -> None:
    bigrams = Bigrams(2, packer(2)(rows([50, 51], [52, 53])))
    source = AdjacencySource(2, 9, bigrams)
    source.count([7, 7, 8])
    source.observe([(1, 1, 4)], rows([30, 31]))
    assert set(named(source, (9, 9, 1))) == {52, 53}, "as the target says it, and nothing else"
    assert set(named(source, (1, 1, 4))) == {30, 31}, "what the text showed counts more"
    assert set(named(source, (9, 9, 2))) == {7, 8}, "token 2 was not asked about"
    source.observe([(9, 9, 1)], rows([32, 33]))
    assert set(named(source, (9, 9, 1))) == {32, 33}


def test_parts_of_a_pass_teach_their_own_rows() -> None:
    """Rows are packed once for all requests of a pass; each still learns what it was told."""
    whole = rows([20, 21], [22, 23], [24, 25], [26, 27])
    tails = [(1, 1, token) for token in range(4)]
    apart, at_once = AdjacencySource(2, 9), AdjacencySource(2, 9)
    at_once.observe(tails, whole)
    apart.observe(tails[:1], whole.part(0, 1))
    apart.observe(tails[1:3], whole.part(1, 4).part(0, 2))
    apart.observe(tails[3:], whole.part(1, 4).part(2, 3))
    for tail in tails:
        assert apart.propose(tail) == at_once.propose(tail)


def test_backward_the_first_row_has_the_last_word() -> None:
    forward, backward = AdjacencySource(1, 9), AdjacencySource(1, 9)
    tails = [(1, 2, 3), (1, 2, 3)]
    forward.observe(tails, rows([20], [21]))
    backward.observe(tails, rows([20], [21]), is_backward=True)
    assert (named(forward, tails[0]), named(backward, tails[0])) == ([21], [20])


def test_the_first_learned_rows_leave() -> None:
    source = AdjacencySource(1, 3)
    for token in range(5):
        source.observe([(-1, -1, token)], rows([token + 10]))
    assert [named(source, (8, 8, token)) for token in range(5)] == [[], [], [12], [13], [14]]


def test_a_view_reads_what_others_wrote_at_its_own_place() -> None:
    shared, own = AdjacencySource(1, 9), AdjacencySource(1, 9)
    view = AdjacencyView(shared, own)
    own.start((1, 2, 3))
    shared.observe([(1, 2, 3)], rows([40]))
    assert named(view, view.anchor()) == [40]
    assert named(own, own.anchor()) == []


def test_copies_name_the_longest_match_first() -> None:
    text = [1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]
    source = ContextSource(ContextTrie(text, 8))
    assert named(source, source.anchor()) == [4, 5]
    state = source.advance(source.anchor(), 4)
    assert named(source, state)[0] == 9
    assert source.propose([]) == (0, [])


def test_the_pool_answers_the_longest_suffix_it_holds() -> None:
    pool = Pool(30, 100, 8, refresh=True)
    pool.insert(1, [2, 3])
    pool.insert(2, [7])
    tokens = [5, 1, 2]
    source = PoolSource(pool, lambda: tokens)
    assert named(source, source.anchor()) == [3, 7]
    assert named(source, source.advance(source.anchor(), 7)) == []
    tokens.append(9)
    assert source.propose(source.anchor()) == (0, [])


@pytest.mark.parametrize("max_tokens", [2, 10, 40])
def test_the_answer_cache_is_bounded_and_keeps_answers_apart(max_tokens: int) -> None:
    cache = AnswerCache("team", 4, max_tokens, AdjacencySource(1, 9))
    for answer in range(30):
        cache.add([100 + answer, 200 + answer, 300 + answer])
        assert len(cache) <= max_tokens
    if max_tokens > 9:
        sources = [ContextSource(trie) for trie in cache.tries]
        last = [s for s, trie in zip(sources, cache.tries, strict=True) if trie.find([229])]
        assert named(last[0], cache.tries[1].find([129, 229])) == [329]
        assert named(last[0], cache.tries[1].find([329])) == [], "no answer runs into the next"
