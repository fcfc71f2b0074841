"""PTD's pool as a source of `auto`: trajectories that the exploration tree has walked ahead.

Exploration nodes never see the path, so their guesses are wrong about place and right about
sequence: the longer the path's end is found in them, the better what follows there.
"""

from collections.abc import Callable, Sequence
from itertools import product

from engine.spec.pool import Pool, Trie
from engine.spec.token_source import NUM_SILENT, Proposal

_LONGEST = 5  # matched tokens
_MAX_TOKENS = 6  # named per node
_RANKS = 4
_FANOUTS = 3
_LENGTH_PRIORS = (0.08, 0.2, 0.35, 0.5, 0.6)
# By matched tokens and number of children: the codes of the youngest child, the next one, ...
_CODES = {
    (length, fanout): [
        NUM_SILENT + ((length - 1) * _RANKS + min(rank, _RANKS - 1)) * _FANOUTS + fanout - 1
        for rank in range(_MAX_TOKENS)
    ]
    for length, fanout in product(range(1, _LONGEST + 1), range(1, _FANOUTS + 1))
}


class PoolSource:
    """Proposes the children of the longest suffix, of up to five tokens, that the pool holds.

    Features: matched tokens, rank by recency, number of children. A state is the tries behind all
    matching suffixes, the longest first.
    """

    priors: Sequence[float] = (
        *(0.0,) * NUM_SILENT,
        *(
            prior / (1.0 + rank + 0.5 * fanout)
            for prior, rank, fanout in product(_LENGTH_PRIORS, range(_RANKS), range(_FANOUTS))
        ),
    )

    def __init__(self, pool: Pool, tokens: Callable[[], Sequence[int]]) -> None:
        """`tokens` gives the live token list."""
        self._pool = pool
        self._tokens = tokens

    def anchor(self) -> tuple[tuple[int, Trie], ...]:
        """The tries behind the last committed tokens."""
        state: tuple[tuple[int, Trie], ...] = ()
        for token in self._tokens()[-_LONGEST:]:
            state = self.advance(state, token)
        return state

    def advance(
        self, state: tuple[tuple[int, Trie], ...], token: int
    ) -> tuple[tuple[int, Trie], ...]:
        """One token on in every trie, and one trie more that starts with it."""
        ahead = [
            (length + 1, trie[token])
            for length, trie in state
            if length < _LONGEST and trie.get(token)
        ]
        trie = self._pool.lookup(token)
        if trie:
            ahead.append((1, trie))
        return tuple(ahead)

    def propose(self, state: tuple[tuple[int, Trie], ...]) -> Proposal:
        """The children of all matches, those of longer ones first, the youngest first in each."""
        if not state:
            return 0, []
        found: dict[int, int] = {}
        for length, trie in state:
            codes = _CODES[length, min(len(trie), _FANOUTS)]
            for token, code in zip(reversed(trie), codes, strict=False):
                if token not in found:
                    found[token] = code
            if len(found) >= _MAX_TOKENS:
                break
        return min(state[0][0], 3), list(found.items())[:_MAX_TOKENS]
