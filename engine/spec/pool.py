"""PTD's candidate pool: what was seen to follow a token, as one small trie per token.

The draft tree and the verification fill it, the next step's candidates come out of it. Every bound
is hard, since each node of a trie may become a row of the next forward pass.
"""

from typing import TypeAlias

Trie: TypeAlias = "dict[int, Trie]"  # token id -> continuations; the oldest come first
Key: TypeAlias = int | tuple[int, int]  # the last token, or the last two


class Pool:
    """Key -> trie of continuations, first in first out.

    A trie holds at most `nodes_per_key` nodes in `max_depth` levels, the pool at most `max_keys`
    tries. With `refresh` a key or a branch that is met again counts as new.
    """

    def __init__(
        self, nodes_per_key: int, max_keys: int, max_depth: int, refresh: bool = False
    ) -> None:
        self._nodes_per_key = nodes_per_key
        self._max_keys = max_keys
        self._max_depth = min(max_depth, nodes_per_key)  # so that one chain always fits
        self._refresh = refresh
        self._tries: dict[Key, Trie] = {}
        self._sizes: dict[Key, int] = {}
        self.num_nodes = 0  # of all tries

    def __len__(self) -> int:
        return len(self._tries)

    def lookup(self, key: Key) -> Trie:
        """The live trie of `key`, empty if unknown. Read only; copy what must outlive a merge."""
        return self._tries.get(key, {})

    def merge(self, key: Key, trie: Trie) -> None:
        """Unite `trie` with the key's trie, token by token; beyond the bound the oldest branch
        leaves, and inside the only branch its oldest one. `trie` is copied."""
        if not trie:
            return
        known = self._tries.get(key)
        if known is None:
            known = self._tries[key] = {}
            self._sizes[key] = 0
            if len(self._tries) > self._max_keys:
                oldest = next(iter(self._tries))
                del self._tries[oldest]
                self.num_nodes -= self._sizes.pop(oldest)
        elif self._refresh:
            self._tries[key] = self._tries.pop(key)
        before = self._sizes[key]
        size = before + self._unite(known, trie, self._max_depth)
        while size > self._nodes_per_key:
            size -= _evict(known)
        self._sizes[key] = size
        self.num_nodes += size - before

    def insert(self, key: Key, continuation: list[int]) -> None:
        """Merge one path."""
        trie: Trie = {}
        for token_id in reversed(continuation):
            trie = {token_id: trie}
        self.merge(key, trie)

    def _unite(self, known: Trie, trie: Trie, levels: int) -> int:
        """Add `trie` to `known`; return how many nodes are new."""
        added = 0
        for token_id, branch in trie.items():
            below = known.get(token_id)
            if below is None:
                below = known[token_id] = {}
                added += 1
            elif self._refresh:
                known[token_id] = known.pop(token_id)
            if branch and levels > 1:
                added += self._unite(below, branch, levels - 1)
        return added


def _evict(trie: Trie) -> int:
    """Remove the oldest branch of the first node with several; return how many nodes left."""
    while len(trie) == 1:
        (trie,) = trie.values()
    return 1 + _size(trie.pop(next(iter(trie))))


def _size(trie: Trie) -> int:
    return len(trie) + sum([_size(branch) for branch in trie.values() if branch])
