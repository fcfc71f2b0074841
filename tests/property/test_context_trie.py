"""The trie against a naive search: counts, followers, matches that advance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec.context_trie import ContextTrie, TrieNode

ORDER = 4
TEXT = st.lists(st.integers(0, 3), max_size=40)
PATH = st.lists(st.integers(0, 3), max_size=6)


def naive(text: list[int], suffix: list[int]) -> dict[int, int]:
    """Followers of `suffix` in `text`, with counts; the latest comes last."""
    counts: dict[int, int] = {}
    for start in range(len(text) - len(suffix)):
        if text[start : start + len(suffix)] == suffix:
            follower = text[start + len(suffix)]
            counts[follower] = counts.pop(follower, 0) + 1
    return counts


def expected(text: list[int], path: list[int], is_own: bool) -> list[dict[int, int]]:
    """Followers by matched tokens, the longest first, each set of occurrences once."""
    whole = text + path if is_own else path
    found: list[dict[int, int]] = []
    for length in range(min(len(whole), ORDER), 0, -1):
        counts = naive(text, whole[-length:])
        if counts and (not found or sum(counts.values()) > sum(found[-1].values())):
            found.append(counts)
    return found


def told(trie: ContextTrie, points) -> list[dict[int, int]]:
    """What the trie says, of the same form; points that match more than ORDER are left to it."""
    found: list[dict[int, int]] = []
    for point in points:
        counts = {token: count for token, count, _ in trie.followers(point, 9)}
        if counts and (not found or sum(counts.values()) > sum(found[-1].values())):
            found.append(counts)
    return found


def check(trie: ContextTrie, text: list[int], path: list[int], is_own: bool) -> None:
    points = trie.match() if is_own else []
    for token in path:
        points = trie.advance(points, token)
    naively = expected(text, path, is_own)
    # A single copy may match further back than ORDER tokens; it then stands before the rest.
    got = told(trie, points)
    assert got[len(got) - len(naively) :] == naively
    assert all(sum(counts.values()) == 1 for counts in got[: len(got) - len(naively)])


@settings(max_examples=300, deadline=None)
@given(TEXT, PATH)
def test_counts_and_followers_are_those_of_a_naive_search(text: list[int], path: list[int]) -> None:
    trie = ContextTrie(text, ORDER)
    check(trie, text, path, is_own=True)
    check(trie, text, path, is_own=False)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.lists(st.integers(1, 5), max_size=8))
def test_growing_is_like_building_at_once(text: list[int], pieces: list[int]) -> None:
    live: list[int] = []
    trie = ContextTrie(live, ORDER)
    rest = list(text)
    for size in pieces:
        live += rest[:size]
        del rest[:size]
        trie.update()
    at_once = ContextTrie(live, ORDER)
    assert told(trie, trie.match()) == told(at_once, at_once.match())
    check(trie, live, [], is_own=True)


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_the_best_follower_is_a_most_frequent_one(text: list[int]) -> None:
    trie = ContextTrie(text, ORDER)
    for point in trie.match():
        followers = trie.followers(point, 9)
        counts = [count for _, count, _ in followers]
        assert not counts or counts[0] == max(counts)
        if isinstance(point[1], TrieNode) and len(followers) > 1:
            assert abs(sum(share for _, _, share in followers) - 1.0) < 1e-9
        assert [token for token, _, _ in trie.followers(point, 1)] == [
            token for token, _, _ in followers[:1]
        ]


def test_a_copy_goes_on_beyond_the_order() -> None:
    text = [*range(10, 40), 5, *range(10, 20)]
    trie = ContextTrie(text, ORDER)
    points = trie.match()
    for token in range(20, 40):
        assert trie.followers(points[0], 4) == [(token, 1, 1.0)]
        points = trie.advance(points, token)


def test_a_step_does_not_grow_with_the_context() -> None:
    """Nodes alive at the text's end are bounded by the order, whatever the length."""
    for text in ([7] * 4000, [i * i % 97 for i in range(4000)], list(range(4000))):
        trie = ContextTrie(text, 16)
        assert len(trie._active) <= 18
        assert len(trie.match()) <= 17
