"""All substrings of some texts up to a length, with counts, growing token by token.

SuffixDecoding asks it what followed the end of the context and how often. Only substrings that have
occurred twice have children of their own; what occurred once is a pointer into its text. So
appending a token takes as many steps as the longest repeated suffix has tokens, and memory goes
with repetition instead of with depth.
"""

from collections.abc import Sequence


class Text:
    """One text of a tree, written by `SuffixTree.append` only."""

    __slots__ = ("active", "has_left", "tokens")

    def __init__(self, root: "Node") -> None:
        self.tokens: list[int] = []
        self.has_left = False
        self.active = {0: root}  # length -> the node of the suffix of that length, if it has one


class Node:
    """A substring. `text` and `end` say where it occurred, as long as that is one place."""

    __slots__ = ("children", "count", "depth", "end", "text")

    def __init__(self, text: Text | None, end: int, depth: int) -> None:
        self.count = 1
        self.text = text
        self.end = end
        self.depth = depth
        self.children: dict[int, Node] = {}


Point = tuple[Node, int]  # a node, and how many tokens beyond its end in its only text
Follower = tuple[int, int, Point]  # token, occurrences, the point it leads to


class SuffixTree:
    """Substrings of up to `max_depth` tokens. The oldest texts leave beyond `max_tokens`."""

    def __init__(self, max_depth: int, max_tokens: int | None = None) -> None:
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._root = Node(None, -1, 0)
        self._texts: dict[Text, None] = {}  # oldest first
        self._num_tokens = 0

    def __len__(self) -> int:
        """Tokens of all texts. Each has at most `max_depth` nodes."""
        return self._num_tokens

    def new_text(self) -> Text:
        """An empty text to append to."""
        return Text(self._root)

    def append(self, text: Text, token: int) -> None:
        """Count every substring that ends with `token`. Ignored once `text` has left."""
        if text.has_left:
            return
        self._texts[text] = None
        text.tokens.append(token)
        end = len(text.tokens) - 1
        before, text.active = text.active, {0: self._root}
        # Longest first: a node must be left behind before its second occurrence unfolds it.
        for length in range(min(len(before), self._max_depth) - 1, -1, -1):
            node = before[length]
            if node.text is not None:
                continue  # this is its only occurrence, which goes on in the text
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node(text, end, length + 1)
            else:
                child.count += 1
                self._unfold(child)
            text.active[length + 1] = child
        self._num_tokens += 1
        while self._max_tokens is not None and self._num_tokens > self._max_tokens:
            self.remove(next(iter(self._texts)))

    def _unfold(self, node: Node) -> None:
        """At a second occurrence: give the first one's continuation a node of its own."""
        text, follower = node.text, node.end + 1
        node.text = None
        if text is None or node.depth == self._max_depth or follower == len(text.tokens):
            return
        child = node.children[text.tokens[follower]] = Node(text, follower, node.depth + 1)
        if follower == len(text.tokens) - 1:
            text.active[child.depth] = child

    def remove(self, text: Text) -> None:
        """Forget `text`, as if it had never been appended."""
        del self._texts[text]
        text.has_left = True
        self._num_tokens -= len(text.tokens)
        for start in range(len(text.tokens)):
            node = self._root
            for token in text.tokens[start : start + self._max_depth]:
                child = node.children[token]
                child.count -= 1
                if child.count == 0:
                    del node.children[token]
                    break
                node = child

    def find(self, tokens: Sequence[int]) -> Point | None:
        """The point of the substring `tokens` of 1 to `max_depth` tokens, or None."""
        node, beyond = self._root, 0
        for token in tokens:
            if node.text is None:
                child = node.children.get(token)
                if child is None:
                    return None
                node = child
            else:
                beyond += 1
                following = node.text.tokens[node.end + beyond : node.end + beyond + 1]
                if following != [token]:
                    return None
        return node, beyond

    def followers(self, point: Point, least: float = 0.0) -> list[Follower]:
        """Tokens that followed at least `least` times, most frequent first, then smallest id."""
        node, beyond = point
        if node.depth + beyond >= self._max_depth:
            return []
        if node.text is not None:
            place = node.end + beyond + 1
            is_known = place < len(node.text.tokens) and node.count >= least
            return [(node.text.tokens[place], 1, (node, beyond + 1))] if is_known else []
        found = [(t, c.count, (c, 0)) for t, c in node.children.items() if c.count >= least]
        found.sort(key=lambda follower: (-follower[1], follower[0]))
        return found
