"""One price for all: how many nodes a step drafts, and for which requests.

A step of n nodes gives `plain + S(n)` tokens in `cost(n)` seconds. All requests' nodes stand in one
line by what they are worth, so S is concave, and the best n for the step also splits it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from engine.spec.priced_tree import PricedTree


@dataclass(frozen=True, slots=True)
class Split:
    """How many nodes each tree keeps, and the price: tokens per second of the whole step."""

    sizes: tuple[int, ...]
    price: float


def split(
    trees: Sequence[PricedTree],
    cost: Callable[[int], float],
    edges: Sequence[int],
    factor: float = 1.0,
    plain: int | None = None,
) -> Split:
    """Grow `trees` to the sizes that maximise tokens per second.

    `cost(n)`: seconds of the step with n nodes in all, not falling in n. `edges`: the ascending
    numbers of nodes to choose from, 0 first; where the trees end is one more. `plain`: tokens of
    the step without nodes, by default one for each tree. A node's worth counts divided by `factor`.
    """
    tokens = float(len(trees) if plain is None else plain)
    best_size, best_rate = 0, tokens / cost(0)
    line = [(-tree.peek(), index) for index, tree in enumerate(trees)]
    heapify(line)
    order: list[int] = []
    for place, edge in enumerate(edges[1:], start=1):
        if not line:
            break
        size = len(order)
        worth = -line[0][0] / factor
        if all(tokens + (n - size) * worth <= best_rate * cost(n) for n in edges[place:]):
            break  # no larger tree can be better, were all its nodes as good as the next one
        while len(order) < edge and line and line[0][0] < 0.0:
            negative, index = line[0]
            tree = trees[index]
            tree.take()
            order.append(index)
            tokens -= negative / factor
            worth = tree.peek()
            if worth > 0.0:
                heapreplace(line, (-worth, index))
            else:
                heappop(line)
        rate = tokens / cost(len(order))
        if rate > best_rate:
            best_size, best_rate = len(order), rate
        if len(order) < edge:
            break
    sizes = [0] * len(trees)
    for index in order[:best_size]:
        sizes[index] += 1
    return Split(tuple(sizes), best_rate)
