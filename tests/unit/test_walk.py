"""The walk equals sequential decoding of any model over any tree."""

import random

from hypothesis import given
from hypothesis import strategies as st

from engine.spec.tree import EXPLORE, TokenTree
from engine.spec.walk import walk


def toy_next(token_ids: tuple[int, ...]) -> int:
    """A model whose next token depends on the whole path."""
    return (sum((i + 1) * t for i, t in enumerate(token_ids)) * 7 + 3) % 5


@st.composite
def trees(draw) -> TokenTree:
    tree = TokenTree.anchored(draw(st.integers(0, 4)))
    for _ in range(draw(st.integers(0, 40))):
        tree.add(
            draw(st.integers(0, len(tree) - 1)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from([0, 0, 0, EXPLORE])),
        )
    return tree


@given(trees(), st.integers(1, 12))
def test_walk_is_sequential_decoding(tree: TokenTree, room: int) -> None:
    left = room

    def draw(node: int) -> int:
        path = [tree.token_ids[i] for i in [0, *tree.path(node)]]
        return toy_next(tuple(path))

    def is_final(token_id: int) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    outcome = walk(tree, draw, is_final)
    text = [tree.token_ids[0]]
    for token_id in outcome.token_ids:
        assert token_id == toy_next(tuple(text))
        text.append(token_id)
    assert len(outcome.token_ids) == len(outcome.path) + 1 <= room
    assert [tree.token_ids[i] for i in outcome.path] == outcome.token_ids[:-1]
    parents = [0, *outcome.path]
    assert all(tree.parents[n] == p for p, n in zip(parents, outcome.path, strict=False))
    assert all(tree.kinds[n] != EXPLORE for n in outcome.path)
    if len(outcome.token_ids) < room:
        assert tree.child(parents[-1], outcome.token_ids[-1]) is None


@given(trees())
def test_tree_algebra(tree: TokenTree) -> None:
    mask = tree.ancestor_mask()
    for node in range(len(tree)):
        assert tree.parents[node] < node
        assert set(mask[node].nonzero()[0]) == {0, node, *tree.path(node)}
        assert mask[node].sum() == tree.depths[node] + 1
    verified = [
        (tree.parents[n], tree.token_ids[n]) for n in range(1, len(tree)) if not tree.kinds[n]
    ]
    assert len(set(verified)) == len(verified) == tree.num_draft_tokens
    assert tree.num_explored_tokens == sum(tree.kinds)


def test_oracle_chain_gives_everything_and_the_bonus() -> None:
    tree = TokenTree.chain([3, 1, 4, 1, 5])
    answers = iter([1, 4, 1, 5, 9])
    outcome = walk(tree, lambda node: next(answers), lambda token_id: False)
    assert outcome.path == [1, 2, 3, 4]
    assert outcome.token_ids == [1, 4, 1, 5, 9]


def test_random_drafts_never_lengthen_a_walk_beyond_the_tree() -> None:
    rng = random.Random(1)
    for _ in range(200):
        tree = TokenTree.anchored(0)
        for _ in range(30):
            tree.add(rng.randrange(len(tree)), rng.randrange(3))
        outcome = walk(tree, lambda node: rng.randrange(3), lambda token_id: False)
        assert len(outcome.path) <= max(tree.depths)
