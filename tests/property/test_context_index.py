from hypothesis import given
from hypothesis import strategies as st

from engine.spec.context_index import ContextIndex

texts = st.lists(st.integers(0, 3), max_size=40)


def naive(text: list[int], gram: list[int]) -> list[int]:
    """Every position that follows an occurrence of `gram`."""
    n = len(gram)
    return [end for end in range(n, len(text)) if text[end - n : end] == gram]


@given(texts, st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
def test_equals_a_naive_search(text: list[int], lengths: list[int]):
    index = ContextIndex(text, lengths)
    for n in lengths:
        for end in range(n, len(text) + 1):
            gram = text[end - n : end]
            found = naive(text, gram)
            assert index.first(tuple(gram)) == (found[0] if found else None)
            agreed = len(found) > 1 and len({text[position] for position in found}) == 1
            assert index.agrees(tuple(gram)) == agreed


@given(st.lists(texts, max_size=6))
def test_incremental_equals_rebuilt(pieces: list[list[int]]):
    live: list[int] = []
    index = ContextIndex(live, (3, 2, 1))
    for piece in pieces:
        live += piece
        index.update()
    rebuilt = ContextIndex(list(live), (3, 2, 1))
    for n in (3, 2, 1):
        for end in range(n, len(live) + 1):
            gram = tuple(live[end - n : end])
            assert index.first(gram) == rebuilt.first(gram)
            assert index.agrees(gram) == rebuilt.agrees(gram)
