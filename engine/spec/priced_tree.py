"""The most probable paths of one request, in order: every prefix is the best tree of its size.

A tree gains 1 + sum of P(v) tokens, P(v) being the probability that the target's own continuation
starts with v's path. A parent's P is never below its child's, so taking nodes by falling P always
gives a tree, and no tree of that size gains more. The order is exact but for children that are
surer than `_HOPE`: they wait until their parent is opened.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush, heapreplace

from engine.spec.calibrator import SHIFT, Calibrator
from engine.spec.drafter import DraftLimits
from engine.spec.token_source import State, TokenSource
from engine.spec.tree import TokenTree

_LEAST = 1e-4  # path probability below which nothing is worth a row at any price
# Asking the sources is what a tree costs, and most nodes are leaves: a node is opened only when a
# child that follows it this surely would be next in line.
_HOPE = 0.6
_SHUT = -1
Scored = tuple[int, int]  # token, key


class PricedTree:
    """One request's nodes, grown best first. Node 0 is the anchor.

    `peek` tells the worth of the next node and `take` takes it. Exploration nodes stand in the same
    line, each worth `explore_worth` tokens.
    """

    def __init__(
        self,
        sources: Mapping[int, TokenSource],
        calibrator: Calibrator,
        limits: DraftLimits,
        exploration: tuple[int, float] = (0, 0.0),
    ) -> None:
        """`sources`: by their places in a key. `exploration`: number of nodes on offer, and the
        worth of each, in tokens."""
        self._advance = list(enumerate(source.advance for source in sources.values()))
        self._propose = [(place * SHIFT, source.propose) for place, source in sources.items()]
        self._calibrator = calibrator
        self._limits = limits
        self._explore_left, self._explore_worth = exploration
        anchor = [source.anchor() for source in sources.values()]
        self._worths = [1.0]
        self._depths = [0]
        self._nodes: list[tuple[int, int]] = [(-1, -1)]  # parent, token
        self._states: dict[int, list[State]] = {0: anchor}  # of nodes asked for so far
        # Of opened nodes: children, best first; the silent codes of all sources, and the tokens'.
        self._children: dict[int, list[tuple[float, int]]] = {}
        self._named: dict[int, tuple[int, dict[int, int]]] = {}
        self._heap: list[tuple[float, int, int]] = []  # -worth, parent, rank; _SHUT: to be opened
        self.taken: list[bool] = []  # in order: whether it was an exploration node
        self._open(0)

    def __len__(self) -> int:
        """Nodes taken so far, the anchor not counted."""
        return len(self.taken)

    def peek(self) -> float:
        """Expected tokens that the next node adds; 0 if there is none left."""
        if len(self.taken) >= self._limits.budget:
            return 0.0
        heap = self._heap
        while heap and heap[0][2] == _SHUT:
            self._open(heappop(heap)[1])
        best = -heap[0][0] if heap else 0.0
        if self._explore_left and self._explore_worth > best:
            return self._explore_worth
        return best

    def take(self) -> None:
        """Add the node that `peek` has looked at."""
        if self._explore_left and self._explore_worth > (-self._heap[0][0] if self._heap else 0.0):
            self._explore_left -= 1
            self.taken.append(True)
            return
        negative, parent, rank = self._heap[0]
        siblings = self._children[parent]
        following = rank + 1
        worth = self._worths[parent] * siblings[following][0] if following < len(siblings) else 0.0
        if worth >= _LEAST:
            heapreplace(self._heap, (-worth, parent, following))
        else:
            heappop(self._heap)
        node = len(self._nodes)
        self.taken.append(False)
        self._nodes.append((parent, siblings[rank][1]))
        self._worths.append(-negative)
        depth = self._depths[parent] + 1
        self._depths.append(depth)
        if depth < self._limits.depth:
            heappush(self._heap, (negative * _HOPE, node, _SHUT))

    def build(self, size: int) -> tuple[TokenTree, int, float]:
        """The tree of the first `size` taken nodes without the explored ones, their number, and
        the tokens it is expected to give, the bonus included."""
        num_explored = sum(self.taken[:size])
        tree = TokenTree.anchored(-1)
        tokens = 1.0
        for node in range(1, size - num_explored + 1):
            tree.add(*self._nodes[node])
            tokens += self._worths[node]
        return tree, num_explored, tokens

    def candidates(self, node: int) -> Iterable[Scored]:
        """All that the sources name at `node`, with their keys, taken or not."""
        if node not in self._named:
            self._open(node)
        base, named = self._named[node]
        return [(token, base + code) for token, code in named.items()]

    def _follow(self, node: int) -> list[State]:
        """The sources' states at `node`."""
        states = self._states.get(node)
        if states is None:
            parent, token = self._nodes[node]
            above = self._follow(parent)
            states = [advance(above[place], token) for place, advance in self._advance]
            self._states[node] = states
        return states

    def _open(self, node: int) -> None:
        """Ask all sources, calibrate, and put the best child in line."""
        base = 0
        named: dict[int, int] = {}  # token -> key, less the silent codes' part
        for (shift, propose), state in zip(self._propose, self._follow(node), strict=True):
            silent, found = propose(state)
            base += silent << shift
            for token, code in found:
                part = (code - silent) << shift
                named[token] = named[token] + part if token in named else part
        lookup = self._calibrator.lookup
        children = [(lookup[base + code], token) for token, code in named.items()]
        children.sort(reverse=True)
        total = sum([child[0] for child in children])
        if total > 1.0:  # siblings exclude each other
            children = [(p / total, token) for p, token in children]
        self._named[node] = base, named
        del children[self._limits.width :]
        self._children[node] = children
        if children and self._depths[node] < self._limits.depth:
            worth = self._worths[node] * children[0][0]
            if worth >= _LEAST:
                heappush(self._heap, (-worth, node, 0))
