"""The n-gram lists of Lookahead decoding and Self-Draft: what was seen to follow a token.

The candidate pool of the methods that PTD is measured against. PTD itself keeps tries
(engine/spec/pool.py).
"""

from collections.abc import Sequence

from engine.spec.tree import TokenTree


class NgramPool:
    """Key token -> its distinct continuations of `length` tokens, least recently met first.

    At most `capacity` per key and `max_keys` keys; the oldest leave.
    """

    def __init__(self, length: int, capacity: int, max_keys: int) -> None:
        self._length = length
        self._capacity = capacity
        self._max_keys = max_keys
        self._lists: dict[int, dict[tuple[int, ...], None]] = {}
        self.num_ngrams = 0

    def __len__(self) -> int:
        return len(self._lists)

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        """The continuations of `key`, most recently met first."""
        return list(reversed(self._lists.get(key, ())))

    def insert(self, key: int, continuation: tuple[int, ...]) -> None:
        """Make `continuation` the newest of `key`."""
        known = self._lists.setdefault(key, {})
        before = len(known)
        known.pop(continuation, None)
        known[continuation] = None
        if len(known) > self._capacity:
            del known[next(iter(known))]
        self.num_ngrams += len(known) - before
        if len(self._lists) > self._max_keys:
            self.num_ngrams -= len(self._lists.pop(next(iter(self._lists))))

    def harvest(self, token_ids: Sequence[int], start: int = 0) -> None:
        """Insert every n-gram of `token_ids` that ends at index `start` or behind it."""
        for end in range(max(start, self._length), len(token_ids)):
            first = end - self._length
            self.insert(token_ids[first], tuple(token_ids[first + 1 : end + 1]))

    def add_to(self, tree: TokenTree, max_nodes: int, max_depth: int) -> None:
        """Verify the anchor's continuations, the newest first; common beginnings share nodes."""
        for continuation in self.lookup(tree.token_ids[0]):
            node = 0
            for token_id in continuation[:max_depth]:
                if tree.child(node, token_id) is None and tree.num_draft_tokens >= max_nodes:
                    break
                node = tree.add(node, token_id)
