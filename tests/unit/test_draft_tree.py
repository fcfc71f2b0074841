"""The draft tree's rules on hand-made trees, and its sizes under extreme predictors."""

import itertools

import pytest

from engine.spec.draft_tree import DraftNode, DraftTree
from engine.spec.tree import EXPLORE, TokenTree


def planted(*chains: list[int], width: int = 4, depth: int = 6, max_nodes: int = 124) -> DraftTree:
    tree = DraftTree(width, depth, max_nodes)
    for chain in chains:
        tree.plant(chain)
    return tree


def shape(nodes: dict[int, DraftNode]) -> dict:
    return {token_id: shape(node.children) for token_id, node in nodes.items()}


def chain(*token_ids: int) -> dict:
    return {token_ids[0]: chain(*token_ids[1:])} if token_ids else {}


def test_a_tree_that_cannot_hold_its_chains_is_refused() -> None:
    with pytest.raises(ValueError, match="23 nodes cannot hold 4 chains of depth 6"):
        DraftTree(4, 6, 23)


def test_planting_fills_the_spine_and_skips_known_tokens() -> None:
    tree = planted([1, 2, 3], [1, 9], [4], [5], width=2)
    assert shape(tree.spine) == {1: {2: {3: {}}}, 4: {}}
    assert shape(planted([1, 2, 3], depth=2).spine) == {1: {2: {}}}


def test_attach_adds_new_tokens_only_and_drops_what_has_no_room() -> None:
    tree = planted([1, 2], width=2)
    (root,) = tree.spine.values()
    for predicted, children in ((2, [2]), (7, [2, 7]), (8, [2, 7]), (None, [2, 7])):
        root.prediction = predicted
        tree.attach()
        assert list(root.children) == children


def test_attach_gives_fresh_nodes_no_child_in_the_same_step() -> None:
    tree = planted([1])
    for node in tree:
        node.prediction = 5
    tree.attach()
    assert shape(tree.spine) == {1: {5: {}}}


def test_refill_moves_the_last_spine_nodes_prediction_without_its_subtree() -> None:
    tree = planted([1, 5], [2, 6, 7])
    tree.spine[2].prediction = 6
    tree.refill(root_answer=9)
    assert shape(tree.spine) == {1: {5: {}}, 2: {}, 6: {}}


def test_refill_adds_nothing_without_place_or_news_or_row() -> None:
    full = planted([1], [2], width=2)
    full.spine[2].prediction = 5
    full.refill(9)
    assert shape(full.spine) == {1: {}, 2: {}}

    known = planted([1, 3], [2, 1, 4])
    known.spine[2].prediction = 1
    known.refill(9)
    assert shape(known.spine) == {1: {3: {}}, 2: {}}  # moved out of the children all the same

    blind = planted([1], [2])
    blind.refill(9)
    assert shape(blind.spine) == {1: {}, 2: {}}


def test_an_empty_spine_starts_again_with_the_roots_answer() -> None:
    tree = planted()
    tree.refill(9)
    assert shape(tree.spine) == {9: {}}


def test_step_appends_the_eldest_heir_last() -> None:
    tree = planted([1, 2, 3], [4, 5], depth=2)
    tree.spine[1].children[2].children[3] = DraftNode(3)
    tree.spine[1].children[8] = DraftNode(8)
    tree.step_and_prune()
    assert shape(tree.spine) == {4: {5: {}}, 2: {3: {}}}


def test_step_skips_children_that_are_in_the_spine_and_drops_a_subtree_of_such_children_only() -> (
    None
):
    tree = planted([1, 4, 9], [4], depth=3)
    tree.spine[1].children[4].children[9].children[7] = DraftNode(7)
    tree.step_and_prune()
    assert shape(tree.spine) == {4: {}}

    tree = planted([1, 4, 9], [4], depth=3)
    tree.spine[1].children[4].children[9].children[7] = DraftNode(7)
    tree.spine[1].children[6] = DraftNode(6)
    tree.step_and_prune()
    assert shape(tree.spine) == {4: {}, 6: {}}


@pytest.mark.parametrize("hops", range(6))
def test_endings_take_up_to_four_levels_above_with_them(hops: int) -> None:
    path = [*range(10, 10 + hops), 0]
    tree = planted([1], path)
    tree.drop_endings({0})
    kept = path[: max(0, hops - 4)]
    assert shape(tree.spine) == {1: {}, **chain(*kept)}


def test_an_ending_leaves_branches_alone_that_do_not_lead_to_it() -> None:
    tree = planted([1, 2, 3, 4, 5, 0])
    tree.spine[1].children[7] = DraftNode(7)
    tree.drop_endings({0})
    assert shape(tree.spine) == {1: {7: {}}}


def test_overtaken_spine_nodes_step_past_the_text() -> None:
    tree = planted([1, 2, 3], [2, 5], [8, 9])
    tree.overtake([1, 2, 7])
    assert shape(tree.spine) == {3: {}, 5: {}, 8: {9: {}}}


def test_overtaken_spine_nodes_without_an_heir_leave() -> None:
    tree = planted([1, 2], [6, 7])
    tree.overtake([1, 2])
    assert shape(tree.spine) == {6: {7: {}}}


def test_of_two_equal_heirs_the_first_stays() -> None:
    tree = planted([1, 5, 6], [2, 5, 7])
    tree.overtake([1, 2])
    assert shape(tree.spine) == {5: {6: {}}}


def test_overtaking_repeated_tokens_follows_the_path_only() -> None:
    tree = planted([1, 3])
    tree.overtake([1, 1, 3])
    assert shape(tree.spine) == {3: {}}


def test_rows_follow_the_spine_chain_and_the_subtrees() -> None:
    draft_tree = planted([1, 2, 3], [4, 5])
    tree = TokenTree.anchored(0)
    tree.add(0, 1)  # a candidate with a spine node's token stays another node
    nodes = draft_tree.add_to(tree, 100, 100)
    assert [node.token_id for node in nodes] == [1, 4, 2, 5, 3]
    first = len(tree) - len(nodes)
    paths = [[tree.token_ids[i] for i in tree.path(first + n)] for n in range(len(nodes))]
    assert paths == [[1], [1, 4], [1, 2], [1, 4, 5], [1, 2, 3]]
    assert tree.kinds[first:] == [EXPLORE] * len(nodes)


def test_rows_beyond_the_bounds_stay_out() -> None:
    draft_tree = planted([1, 2, 3], [4, 5])
    for max_nodes, max_depth, tokens in (
        (3, 9, [1, 4, 2]),
        (1, 9, [1]),
        (0, 9, []),
        (9, 2, [1, 4, 2]),
        (9, 1, [1]),
        (9, 0, []),
    ):
        nodes = draft_tree.add_to(TokenTree.anchored(0), max_nodes, max_depth)
        assert [node.token_id for node in nodes] == tokens


def test_subtrees_carry_predictions_and_the_token_before() -> None:
    tree = planted([1, 2], [4])
    for node, prediction in zip(tree, (8, None, 3), strict=True):
        node.prediction = prediction
    assert tree.subtrees(anchor=0) == [
        (0, 1, {2: {3: {}}, 8: {}}),
        (1, 2, {3: {}}),
        (1, 4, {}),
    ]


def test_trim_keeps_the_eldest_chains_and_drops_the_youngest_leaves() -> None:
    tree = planted([1, 2], [3], width=2, depth=2, max_nodes=4)
    for token_id in (5, 6, 7):
        tree.spine[1].children[token_id] = DraftNode(token_id)
    for node in tree:
        node.prediction = 1
    tree.trim()
    assert shape(tree.spine) == {1: {2: {}, 5: {}}, 3: {}}
    assert all(node.prediction is None for node in tree)


def advance(tree: DraftTree, predict) -> None:
    for node in tree:
        node.prediction = predict(node)
    tree.attach()
    tree.refill(predict(None))
    tree.step_and_prune()
    tree.trim()


def full_spine(width: int, depth: int, max_nodes: int, fresh) -> DraftTree:
    chains = [[next(fresh)] for _ in range(width)]
    return planted(*chains, width=width, depth=depth, max_nodes=max_nodes)


def ceiling(width: int, depth: int) -> int:
    """R * N_{d - 1} with N_j = 1 + the sum of the last w."""
    sizes = [1]
    while len(sizes) < depth:
        sizes.append(1 + sum(sizes[-width:]))
    return width * sizes[depth - 1]


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (2, 4), (3, 5), (4, 6), (4, 3), (2, 8)])
def test_an_always_new_prediction_reaches_the_ceiling_and_no_more(width: int, depth: int) -> None:
    fresh = itertools.count()
    tree = full_spine(width, depth, 10**6, fresh)
    sizes = []
    for _ in range(4 * depth):
        advance(tree, lambda node: next(fresh))
        sizes.append(len(tree))
    assert max(sizes) == ceiling(width, depth)
    assert ceiling(4, 6) == 124


@pytest.mark.parametrize(("width", "depth"), [(1, 3), (4, 6), (10, 12)])
def test_a_tree_that_never_changes_its_mind_is_one_chain_per_spine_node(
    width: int, depth: int
) -> None:
    fresh = itertools.count()
    mind: dict[DraftNode | None, int] = {}
    tree = full_spine(width, depth, 10**6, fresh)
    for _ in range(3 * depth):
        advance(tree, lambda node: mind.setdefault(node, next(fresh)))
    assert len(tree) == width * depth


def test_a_capped_tree_still_steps() -> None:
    fresh = itertools.count()
    tree = full_spine(10, 12, 124, fresh)
    first = set(tree.spine)
    for _ in range(40):
        advance(tree, lambda node: next(fresh))
        assert len(tree) <= 124
        assert len(tree.spine) == 10
    assert not first & set(tree.spine)
