"""The draft tree's invariants over random lives, against naive statements of each rule."""

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.spec.draft_tree import DraftNode, DraftTree
from engine.spec.tree import TokenTree

EOS = {0, 1}
BOUNDS = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 40))
SEEDS = st.integers(0, 2**32)


def order(tree: DraftTree) -> dict[DraftNode, list[DraftNode]]:
    return {node: list(node.children.values()) for node in tree}


def parents(tree: DraftTree) -> dict[DraftNode, DraftNode | None]:
    found: dict[DraftNode, DraftNode | None] = dict.fromkeys(tree.spine.values())
    for node in tree:
        found.update(dict.fromkeys(node.children.values(), node))
    return found


def subtree(node: DraftNode) -> Iterator[DraftNode]:
    yield node
    for child in node.children.values():
        yield from subtree(child)


def naive_height(node: DraftNode) -> int:
    return max((1 + naive_height(child) for child in node.children.values()), default=0)


def check_growth(tree: DraftTree, width: int) -> None:
    """Attach: exactly the predictions that are new and have room appear, each youngest."""
    before = order(tree)
    tree.attach()
    after = order(tree)
    for node, children in before.items():
        tokens = [child.token_id for child in children]
        has_room = node.prediction is not None and len(children) < width
        new = [node.prediction] if has_room and node.prediction not in tokens else []
        assert after[node][: len(children)] == children
        assert [child.token_id for child in after[node][len(children) :]] == new
    assert len(after) == len(before) + sum(
        len(after[node]) - len(children) for node, children in before.items()
    )


def check_step(tree: DraftTree, depth: int) -> None:
    """StepAndPrune: on a list of (token, node), as the rule reads."""
    before = order(tree)
    spine = list(tree.spine.values())
    for node in list(spine):
        if naive_height(node) >= depth:
            taken = {other.token_id for other in spine}
            heirs = [child for child in node.children.values() if child.token_id not in taken]
            spine.remove(node)
            spine += heirs[:1]
    tree.step_and_prune()
    assert list(tree.spine.values()) == spine
    assert all(before[node] == children for node, children in order(tree).items())


def check_endings(tree: DraftTree) -> None:
    """From each ending climb up to four ancestors, then remove that subtree."""
    above = parents(tree)
    doomed: set[DraftNode] = set()
    for node in above:
        if node.token_id in EOS:
            for _ in range(4):
                node = above[node] or node
            doomed.update(subtree(node))
    tree.drop_endings(EOS)
    assert set(tree) == set(above) - doomed


@settings(max_examples=60, deadline=None)
@given(BOUNDS, st.integers(2, 40), SEEDS)
def test_every_rule_holds_in_every_step_of_a_random_life(bounds, vocab, seed) -> None:
    width, depth, slack = bounds
    rng = random.Random(seed)
    tree = DraftTree(width, depth, width * depth + slack)
    for _ in range(2):
        tree.plant([rng.randrange(vocab) for _ in range(rng.randint(1, 2))])
    for _ in range(25):
        for node in tree:
            node.prediction = None if rng.random() < 0.1 else rng.randrange(vocab)
        check_growth(tree, width)
        tree.refill(rng.randrange(vocab))
        tree.overtake([rng.randrange(vocab) for _ in range(rng.randint(1, 3))])
        check_step(tree, depth)
        check_endings(tree)
        tree.trim()

        nodes = list(tree)
        assert len(tree) == len(nodes) == len(set(nodes)) <= width * depth + slack
        assert len(tree.spine) <= width
        assert all(token_id == node.token_id for token_id, node in tree.spine.items())
        for node in nodes:
            assert len(node.children) <= width
            assert all(token_id == child.token_id for token_id, child in node.children.items())
            assert node.height == naive_height(node)
        assert all(node.height < depth for node in tree.spine.values())
        assert tree.is_full_depth == any(
            naive_height(node) == depth - 1 for node in tree.spine.values()
        )


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(0, 60), st.integers(0, 12))
def test_rows_are_closed_under_parents_and_as_deep_as_spine_index_plus_level(
    seed, max_nodes, max_depth
) -> None:
    rng = random.Random(seed)
    draft_tree = DraftTree(4, 6, 124)
    for step in range(30):
        for node in draft_tree:
            node.prediction = rng.randrange(30)
        draft_tree.attach()
        draft_tree.refill(step)
        draft_tree.step_and_prune()
        draft_tree.trim()
    tree = TokenTree.anchored(99)
    rows = draft_tree.add_to(tree, max_nodes, max_depth)
    assert len(rows) == len(set(rows)) == len(tree) - 1 <= max_nodes

    level = dict.fromkeys(draft_tree.spine.values(), 0)
    index = {node: i for i, node in enumerate(draft_tree.spine.values())}
    for node in draft_tree:
        for child in node.children.values():
            level[child], index[child] = level[node] + 1, index[node]
    above = parents(draft_tree)
    spine = list(draft_tree.spine.values())
    for row, node in enumerate(rows, start=1):
        assert tree.token_ids[row] == node.token_id
        assert tree.depths[row] == 1 + index[node] + level[node] <= max_depth
        seen = rows[tree.parents[row] - 1] if tree.parents[row] else None
        expected = spine[index[node] - 1] if above[node] is None and index[node] else above[node]
        assert seen is expected
    left_out = set(draft_tree) - set(rows)
    if len(rows) < max_nodes:
        assert all(1 + index[node] + level[node] > max_depth for node in left_out)
