"""The heap's trees against all trees, and the split against all splits."""

import random
from itertools import combinations, pairwise, permutations, product

import pytest

from engine.spec.budget import split
from tests.unit.toy_source import random_script, toy_tree


def path_worths(script, depth: int) -> dict[tuple[int, ...], float]:
    """P of every path, by definition."""
    worths = {(): 1.0}
    frontier = [()]
    while frontier:
        path = frontier.pop()
        if len(path) < depth:
            for token, percent in script(path).items():
                worths[*path, token] = worths[path] * percent / 100
                frontier.append((*path, token))
    del worths[()]
    return worths


def best_sum(worths: dict[tuple[int, ...], float], size: int) -> float:
    """The largest sum of P over all trees of `size` nodes."""
    best = 0.0
    for nodes in combinations(worths, size):
        chosen = set(nodes)
        if all(len(node) == 1 or node[:-1] in chosen for node in nodes):
            best = max(best, sum(worths[node] for node in nodes))
    return best


def grown(tree) -> list[float]:
    """The worth of each node, in the order of taking."""
    worths = []
    while tree.peek() > 0.0:
        worths.append(tree.peek())
        tree.take()
    return worths


@pytest.mark.parametrize("seed", range(12))
def test_every_prefix_is_the_best_tree_of_its_size(seed: int) -> None:
    script = random_script(random.Random(seed), names=2)
    worths = path_worths(script, 3)
    worths = {path: worths[path] for path in sorted(worths)[:12]}

    def cut(path):
        return {t: p for t, p in script(path).items() if (*path, t) in worths}

    order = grown(toy_tree(cut, depth=3))
    assert len(order) == len(worths)
    assert all(a >= b - 1e-12 for a, b in pairwise(order))
    for size in range(len(order) + 1):
        assert sum(order[:size]) == pytest.approx(best_sum(worths, size))


@pytest.mark.parametrize("seed", range(5))
def test_trees_of_all_sizes_are_nested(seed: int) -> None:
    tree = toy_tree(random_script(random.Random(seed)), depth=3)
    order = grown(tree)
    before = tree.build(0)[0]
    assert len(before) == 1
    for size in range(1, len(order) + 1):
        built, explored, tokens = tree.build(size)
        assert explored == 0
        assert built.token_ids[:-1] == before.token_ids
        assert built.parents[:-1] == before.parents
        assert tokens == pytest.approx(1 + sum(order[:size]))
        before = built


def test_siblings_share_at_most_one() -> None:
    tree = toy_tree(lambda path: {} if path else {1: 90, 2: 80, 3: 30})
    order = grown(tree)
    assert sum(order) == pytest.approx(1.0)
    assert order[0] == pytest.approx(0.9 / 2.0)


def test_width_depth_and_budget_are_hard() -> None:
    def script(path):
        return {1: 40, 2: 30, 3: 20}

    tree = toy_tree(script, width=2, depth=3, budget=9)
    grown(tree)
    built, _, _ = tree.build(len(tree))
    assert len(built) - 1 == 9
    assert max(built.depths) <= 3
    assert max(built.parents.count(node) for node in range(len(built))) <= 2
    assert grown(toy_tree(script, depth=0)) == []


def test_exploration_stands_in_line_at_its_worth() -> None:
    tree = toy_tree(lambda path: {1: 50} if len(path) < 3 else {}, exploration=(2, 0.2))
    assert grown(tree) == pytest.approx([0.5, 0.25, 0.2, 0.2, 0.125])
    built, explored, tokens = tree.build(4)
    assert (len(built), explored) == (3, 2)
    assert tokens == pytest.approx(1.75)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slope", [0.0, 0.004, 0.035, 0.2, 3.0])
def test_the_split_is_the_best_of_all_splits(seed: int, slope: float) -> None:
    """Against all ways to give 2 or 3 requests nodes, over all totals that the edges allow."""
    rng = random.Random(seed)
    scripts = [random_script(rng, names=2) for _ in range(rng.choice((2, 3)))]
    curves = [[0.0, *grown(toy_tree(script, depth=3))] for script in scripts]
    sums = [[sum(curve[: n + 1]) for n in range(len(curve))] for curve in curves]
    edges = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]
    most = sum(len(curve) - 1 for curve in curves)

    def cost(nodes: int) -> float:
        return 1.0 + slope * nodes + (0.1 * slope if nodes > 5 else 0.0)

    best = max(
        (len(scripts) + sum(s[n] for s, n in zip(sums, sizes, strict=True))) / cost(sum(sizes))
        for sizes in product(*(range(len(s)) for s in sums))
        if sum(sizes) in edges or sum(sizes) == most
    )
    trees = [toy_tree(script, depth=3) for script in scripts]
    result = split(trees, cost, edges)
    assert result.price == pytest.approx(best)
    tokens = sum(tree.build(n)[2] for tree, n in zip(trees, result.sizes, strict=True))
    assert tokens / cost(sum(result.sizes)) == pytest.approx(best)
    scaled = split([toy_tree(s, depth=3) for s in scripts], lambda n: 7 * cost(n), edges)
    assert scaled.sizes == result.sizes, "the unit of time does not matter"


def test_flat_costs_buy_all_and_huge_costs_nothing() -> None:
    def script(path):
        return {1: 60, 2: 20}

    flat = split([toy_tree(script, budget=40)], lambda n: 1.0, [0, 1, 2, 4, 8, 16, 32, 64])
    assert flat.sizes == (40,)
    dear = split([toy_tree(script)], lambda n: 1.0 + 5.0 * n, [0, 1, 2, 4])
    assert dear.sizes == (0,)
    assert dear.price == 1.0


def test_a_factor_makes_nodes_count_for_less() -> None:
    def script(path):
        return {1: 60, 2: 20}

    def size(factor: float) -> int:
        return split([toy_tree(script)], lambda n: 1 + 0.05 * n, list(range(30)), factor).sizes[0]

    assert size(1.0) > size(2.0) > size(20.0) == 0


def test_requests_are_treated_alike_in_any_order() -> None:
    rng = random.Random(3)
    scripts = [random_script(rng, depth=4) for _ in range(3)]
    by_order = []
    for order in permutations(range(3)):
        sizes = split(
            [toy_tree(scripts[i], depth=4) for i in order],
            lambda n: 1 + 0.03 * n,
            list(range(40)),
        ).sizes
        by_order.append([sizes[order.index(i)] for i in range(3)])
    assert all(sizes == by_order[0] for sizes in by_order)


def test_a_hopeless_request_leaves_the_others_their_trees() -> None:
    """Its one token raises the step's price, its nodes are never bought."""
    script = random_script(random.Random(8), depth=4)
    alone = split([toy_tree(script, depth=4)], lambda n: 1 + 0.02 * n, list(range(40)))
    both = split(
        [toy_tree(script, depth=4), toy_tree(lambda path: {})],
        lambda n: 2 + 0.04 * n,
        list(range(40)),
    )
    assert both.sizes[1] == 0
    assert 0 < both.sizes[0] <= alone.sizes[0]
