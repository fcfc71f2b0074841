"""Where the last few tokens have occurred before, so that what followed them can be copied.

Copying is the cheapest and most often right of all token sources, provided that finding the place
costs nothing: one dictionary look-up per n-gram length, whatever the length of the context.
"""

from collections.abc import Sequence

NGram = tuple[int, ...]


class ContextIndex:
    """The n-grams of one request's prompt and committed tokens.

    Reads the live token list it is given and never writes to it. Only occurrences that already have
    a following token are indexed, so a query can not find itself. Memory is O(context) entries for
    each of `lengths`; `update` costs O(new tokens), a look-up O(n).
    """

    def __init__(self, token_ids: Sequence[int], lengths: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._lengths = tuple(lengths)
        self._first: dict[NGram, int] = {}
        self._agrees: dict[NGram, bool] = {}  # n-grams that occurred at least twice
        self._next = min(self._lengths)
        self.update()

    def update(self) -> None:
        """Index the occurrences that gained a following token since the last call."""
        tokens, first_of, agrees = self._token_ids, self._first, self._agrees
        for follower in range(self._next, len(tokens)):
            for n in self._lengths:
                if n <= follower:
                    gram = tuple(tokens[follower - n : follower])
                    first = first_of.setdefault(gram, follower)
                    if first != follower and agrees.get(gram, True):
                        agrees[gram] = tokens[first] == tokens[follower]
        self._next = max(self._next, len(tokens))

    def __len__(self) -> int:
        """Distinct n-grams."""
        return len(self._first)

    def first(self, gram: NGram) -> int | None:
        """The position right after the earliest occurrence of `gram`, or None."""
        return self._first.get(gram)

    def agrees(self, gram: NGram) -> bool:
        """Whether `gram` occurred at least twice, each time followed by the same token."""
        return self._agrees.get(gram, False)
