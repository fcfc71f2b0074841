"""Copies as a source of `auto`: what followed the path's end wherever it occurred before.

The match moves along drafted tokens, so a copy goes on beyond its first proposal and is found again
behind a wrong token.
"""

from collections.abc import Callable, Sequence
from itertools import product

from engine.spec.context_trie import GAP, ContextTrie, Point
from engine.spec.token_source import NUM_SILENT, Proposal

_MAX_TOKENS = 6  # named per node, all orders together
_ORDERS = (1, 2, 3, 4, 5, 8)  # least matched tokens of each bucket
_SHARES = (1.0, 0.5, 0.0)
_COUNTS = (1, 2, 4)
_ORDER_PRIORS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.8)
_SHARE_PRIORS = (1.0, 0.6, 0.2)


def _prior(order: int, share: int, count: int, is_latest: bool, is_longest: bool) -> float:
    sureness = (0.8, 0.9, 1.0)[count] * (1.0 if is_latest else 0.7) * (1.0 if is_longest else 0.3)
    return _ORDER_PRIORS[order] * _SHARE_PRIORS[share] * sureness


def _buckets(least: Sequence[int], highest: int) -> list[int]:
    return [max(i for i, low in enumerate(least) if n >= low) for n in range(least[0], highest + 1)]


_ORDER_BUCKET = [0, *_buckets(_ORDERS, _ORDERS[-1])]
_COUNT_BUCKET = [0, *_buckets(_COUNTS, _COUNTS[-1])]
_SILENT = (0, 1, 1, 2, 2, 2, 3, 3, 3)  # by matched tokens


class ContextSource:
    """Proposes from a trie, at the longest match and, for tokens it lacks, at shorter ones.

    Features: matched tokens, share and number of the occurrences, whether it is the latest
    follower, whether the match is the longest.
    """

    priors: Sequence[float] = (
        *(0.0,) * NUM_SILENT,
        *(
            _prior(*code)
            for code in product(range(6), range(3), range(3), (False, True), (False, True))
        ),
    )

    def __init__(self, trie: ContextTrie, anchor: Callable[[], list[Point]] | None = None) -> None:
        """`anchor` gives the match of the committed text, if that is not the trie's own text."""
        self._trie = trie
        self.anchor = anchor or trie.match
        self.advance = trie.advance

    def propose(self, state: list[Point]) -> Proposal:
        """Followers of the match, at most six."""
        if not state:
            return 0, []
        found: list[tuple[int, int]] = []
        named = {GAP}
        is_longest = 1
        for point in state:
            order = _ORDER_BUCKET[min(point[0], 8)]
            followers = self._trie.followers(point, 4)
            for place, (token, count, share) in enumerate(followers):
                if token in named or token < 0:  # a gap between the texts of a cache
                    continue
                named.add(token)
                bucket = 0 if share >= 1.0 else 1 if share >= 0.5 else 2
                code = (order * 3 + bucket) * 3 + _COUNT_BUCKET[min(count, 4)]
                is_latest = place < 2  # the best or, behind it, the latest
                found.append((token, NUM_SILENT + (code * 2 + is_latest) * 2 + is_longest))
            if followers:
                is_longest = 0
            if len(found) >= _MAX_TOKENS:
                break
        return _SILENT[min(state[0][0], 8)], found[:_MAX_TOKENS]
