"""Every short suffix of a growing text with what followed it, for copies of any order at once.

Only substrings that occurred twice have nodes with children; what occurred once is a position in
the text. So appending a token takes as many steps as the longest repeated suffix has tokens, up to
the order, and finding what follows the end of the text takes none.
"""

from collections.abc import Sequence
from itertools import islice

GAP = -1  # no token: stands between texts that do not belong together


class TrieNode:
    """A substring. `end` is where its first occurrence goes on; `best` its most frequent child."""

    __slots__ = ("best", "children", "count", "depth", "end")

    def __init__(self, end: int, depth: int) -> None:
        self.count = 1
        self.end = end
        self.depth = depth
        self.children: dict[int, TrieNode] = {}  # the latest follower comes last
        self.best: TrieNode | None = None


Point = tuple[int, TrieNode | int]  # matched tokens; a repeated substring, or the place of a copy
Follower = tuple[int, int, float]  # token, occurrences, share of the substring's occurrences


class ContextTrie:
    """Substrings of up to `order` tokens of a live token list, and what followed them.

    A match is a list of points, longest first: every earlier occurrence of the path's end lies in
    the last of them, those in a point that also match further back in the one before.
    """

    def __init__(self, tokens: Sequence[int], order: int, *, is_lazy: bool = False) -> None:
        """`is_lazy`: the tokens are taken in at the first `update`."""
        self._tokens = tokens
        self._order = order
        self._root = TrieNode(0, 0)
        self._active: dict[int, TrieNode] = {0: self._root}  # by length, of the text's suffixes
        self._length = 0
        self._num_nodes = 0
        if not is_lazy:
            self.update()

    def __len__(self) -> int:
        """Nodes: of each place of the text at most one per length, and one unfolded."""
        return self._num_nodes

    def update(self) -> None:
        """Take in the tokens that were appended to the list since the last call."""
        for end in range(self._length, len(self._tokens)):
            self._append(self._tokens[end], end)
        self._length = len(self._tokens)

    def _append(self, token: int, end: int) -> None:
        before, active = self._active, {0: self._root}
        for length in sorted(before, reverse=True):  # a node unfolds after it was left behind
            node = before[length]
            if length > self._order or (node.count == 1 and length):
                continue  # nothing is counted there, or the text itself tells its only follower
            child = node.children.pop(token, None)
            if child is None:
                child = TrieNode(end + 1, length + 1)
                self._num_nodes += 1
            else:
                child.count += 1
                if child.count == 2 and child.depth <= self._order:
                    follower = TrieNode(child.end + 1, child.depth + 1)
                    self._num_nodes += 1
                    child.children[self._tokens[child.end]] = child.best = follower
                    if child.end == end:
                        active[follower.depth] = follower
            node.children[token] = child
            if node.best is None or child.count >= node.best.count:
                node.best = child
            active[length + 1] = child
        self._active = active

    def match(self) -> list[Point]:
        """The earlier occurrences of the text's end."""
        points: list[Point] = []
        count = 1  # of the text's end itself, which nothing follows yet
        for length in sorted(self._active, reverse=True):
            node = self._active[length]
            if not length or node.count == 1:
                continue
            if node.count == count:  # the same occurrences: keep the one that reaches further
                points[-1] = (points[-1][0], node)
            else:
                points.append((length, node))
                count = node.count
        return points

    def find(self, tokens: Sequence[int]) -> list[Point]:
        """The occurrences of the end of `tokens`, a text that this trie does not hold."""
        points: list[Point] = []
        for token in tokens[-self._order :]:
            points = self.advance(points, token)
        return points

    def advance(self, points: Sequence[Point], token: int) -> list[Point]:
        """The match of a path that goes on with `token`."""
        ahead: list[Point] = []
        count = 0
        for length, place in points:
            if isinstance(place, int):
                if place < self._length and self._tokens[place] == token:
                    ahead.append((length + 1, place + 1))
                    count = 1
                continue
            child = place.children.get(token)
            if child is not None and child.count != count:
                count = child.count
                ahead.append((length + 1, child.end if count == 1 else child))
            elif child is not None and count > 1:
                ahead[-1] = (ahead[-1][0], child)
        child = self._root.children.get(token)
        if child is not None and child.count != count:
            ahead.append((1, child.end if child.count == 1 else child))
        elif child is not None and child.count > 1:
            ahead[-1] = (ahead[-1][0], child)
        return ahead

    def followers(self, point: Point, limit: int) -> list[Follower]:
        """Up to `limit` tokens: the most frequent one, then the others, the latest first."""
        place = point[1]
        if isinstance(place, int):
            return [(self._tokens[place], 1, 1.0)] if place < self._length else []
        best, children = place.best, place.children
        if best is None:
            return []
        total = place.count - (self._active.get(place.depth) is place)
        if len(children) == 1:
            (token,) = children
            return [(token, best.count, best.count / total)]
        found: list[Follower] = []
        for token in islice(reversed(children), limit):
            child = children[token]
            found.append((token, child.count, child.count / total))
            if child is best:
                found.insert(0, found.pop())
                best = None
        if best is not None:
            token = self._tokens[best.end - 1]
            found.insert(0, (token, best.count, best.count / total))
            del found[limit:]
        return found
