from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec.suffix_tree import SuffixTree, Text

# Appends as (text number, token); removals as (text number, None).
operations = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), *[st.integers(0, 2)] * 12)), max_size=60
)


def count(tree: SuffixTree, gram: tuple[int, ...]) -> int:
    point = tree.find(gram)
    return 0 if point is None else point[0].count


def naive_counts(texts: list[list[int]], longest: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[start : start + n])
        for text in texts
        for n in range(1, longest + 1)
        for start in range(len(text) - n + 1)
    )


@settings(max_examples=300, deadline=None)
@given(operations, st.integers(2, 6))
def test_counts_and_followers_equal_naive_counting_through_appends_and_removals(ops, depth: int):
    tree = SuffixTree(depth)
    texts: dict[int, Text] = {}
    for number, token in ops:
        if token is not None:
            tree.append(texts.setdefault(number, tree.new_text()), token)
        elif number in texts:
            tree.remove(texts.pop(number))
    naive = naive_counts([text.tokens for text in texts.values()], depth)
    for n in range(1, depth + 1):
        for gram in product(range(3), repeat=n):
            assert count(tree, gram) == naive[gram]
            point = tree.find(gram)
            if point is None:
                continue
            expected = [(t, naive[*gram, t]) for t in range(3) if n < depth and naive[*gram, t]]
            expected.sort(key=lambda pair: (-pair[1], pair[0]))
            followers = tree.followers(point)
            assert [(token, occurrences) for token, occurrences, _ in followers] == expected
            for token, _, below in followers:
                assert below == tree.find((*gram, token))
            assert tree.followers(point, 2.0) == [f for f in followers if f[1] >= 2]


@settings(deadline=None)
@given(operations, st.integers(1, 20))
def test_a_bounded_tree_holds_the_youngest_texts_that_fit(ops, max_tokens: int):
    tree = SuffixTree(4, max_tokens)
    texts: dict[int, Text] = {}
    for number, token in ops:
        text = texts.setdefault(number, tree.new_text())
        if token is None:
            texts[number] = tree.new_text()
        else:
            tree.append(text, token)
        held = [list(text.tokens) for text in tree._texts]
        assert sum(map(len, held)) <= max_tokens
    naive = naive_counts([text.tokens for text in tree._texts], 4)
    for n in range(1, 5):
        for gram in product(range(3), repeat=n):
            assert count(tree, gram) == naive[gram]
