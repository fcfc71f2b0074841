"""The pool against sets of paths, the naive form of a trie."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec.ngram_pool import NgramPool
from engine.spec.pool import Pool, Trie

TOKENS = st.integers(0, 5)
PATHS = st.lists(st.lists(TOKENS, min_size=1, max_size=5), min_size=1, max_size=12)


def paths(trie: Trie) -> set[tuple[int, ...]]:
    """All paths from the root, inner nodes' too."""
    found: set[tuple[int, ...]] = set()
    for token_id, branch in trie.items():
        found.add((token_id,))
        found |= {(token_id, *path) for path in paths(branch)}
    return found


def prefixes(inserted: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(path[:end]) for path in inserted for end in range(1, len(path) + 1)}


@given(PATHS, st.booleans(), st.randoms(use_true_random=False))
def test_merging_unites_paths_in_any_order_and_is_idempotent(
    inserted: list[list[int]], refresh: bool, rng: random.Random
) -> None:
    first, second = Pool(1000, 9, 9, refresh), Pool(1000, 9, 9, refresh)
    for path in inserted:
        first.insert(1, path)
    whole = first.lookup(1)
    for path in rng.sample(inserted, len(inserted)):
        second.insert(1, path)
    assert paths(whole) == paths(second.lookup(1)) == prefixes(inserted)
    second.merge(1, whole)
    first.merge(2, whole)
    assert paths(second.lookup(1)) == paths(first.lookup(2)) == prefixes(inserted)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(TOKENS, st.lists(TOKENS, min_size=1, max_size=7)), max_size=60),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 6),
    st.booleans(),
)
def test_bounds_hold_and_only_what_followed_a_key_is_offered(
    inserted, max_nodes: int, max_keys: int, max_depth: int, refresh: bool
) -> None:
    pool = Pool(max_nodes, max_keys, max_depth, refresh)
    for count, (key, path) in enumerate(inserted, start=1):
        before = {token_id: paths(branch) for token_id, branch in pool.lookup(key).items()}
        pool.insert(key, path)
        assert len(pool) <= max_keys
        seen = prefixes([other for known, other in inserted[:count] if known == key])
        kept = paths(pool.lookup(key))
        assert kept <= seen
        assert len(kept) <= max_nodes
        assert all(len(path) <= max_depth for path in kept)
        gone = [token_id for token_id in before if token_id not in pool.lookup(key)]
        if refresh:
            newest = tuple(path[: min(max_depth, max_nodes)])
            assert newest in kept, "what was just met stays"
        else:
            assert gone == list(before)[: len(gone)], "the oldest branches leave first"
        for token_id, branch in pool.lookup(key).items():
            if len(pool.lookup(key)) > 1 and token_id in before:
                assert before[token_id] <= paths(branch), "what stays stays whole"


@given(
    st.lists(st.tuples(TOKENS, st.tuples(TOKENS, TOKENS)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_ngram_lists_are_distinct_bounded_and_least_recently_met_first(
    inserted, capacity: int, max_keys: int
) -> None:
    pool = NgramPool(2, capacity, max_keys)
    for count, (key, gram) in enumerate(inserted, start=1):
        pool.insert(key, gram)
        assert len(pool) <= max_keys
        recent = dict.fromkeys(other for known, other in reversed(inserted[:count]) if known == key)
        found = pool.lookup(key)
        assert found == list(recent)[: len(found)]
        assert found[0] == gram
        assert len(found) <= capacity


@given(st.lists(TOKENS, max_size=30), st.integers(1, 5), st.integers(-3, 30))
def test_harvest_takes_each_ngram_that_ends_behind_start(
    text: list[int], length: int, start: int
) -> None:
    pool = NgramPool(length, 100, 100)
    pool.harvest(text, start)
    expected = {
        (text[end - length], tuple(text[end - length + 1 : end + 1]))
        for end in range(length, len(text))
        if end >= start
    }
    assert {(key, gram) for key in range(6) for gram in pool.lookup(key)} == expected
