"""The target's own earlier answers as a source of `auto`: what it said after the same last tokens.

Rows are kept packed, so that proposing costs one look-up and one unpacking.
"""

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from engine.spec.bigrams import Bigrams
from engine.spec.drafter import Rows
from engine.spec.packed_rows import BUCKETS, layout, packer
from engine.spec.token_source import NUM_SILENT, Proposal

Tail = tuple[int, int, int]  # the last three tokens, -1 where there is none

_LAST = BUCKETS - 1  # scores in the last bucket are not worth naming
# Acceptance over score: by number of known tokens, then of what such a row adds to a longer one's.
_PRIORS = (0.5, 0.7, 0.85, 0.2, 0.3)
_ONE, _TWO, _THREE = (NUM_SILENT + known * BUCKETS for known in range(3))
_BACK_OFF = 3 * BUCKETS
# For a token without a row: what the target says after the token alone or, if that is not known,
# what was said after another token in its place, and the text's commonest tokens.
_BIGRAM_PRIOR, _BIGRAM = 0.5, NUM_SILENT + 5 * BUCKETS
_SKIP_PRIOR, _SKIP = 0.15, NUM_SILENT + 6 * BUCKETS
_COMMON_PRIORS = (0.06, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02, 0.02, 0.015, 0.015, 0.01, 0.01)
_COMMON = NUM_SILENT + 7 * BUCKETS


class AdjacencySource:
    """The best `width` successors after the last three, two and one tokens; the longest wins.

    Features: how many tokens matched, whether more did for others, and the score's bucket. Scores
    below `least` are not named. Later rows overwrite earlier ones; of more than `max_keys` keys the
    first learned leave.
    """

    priors: Sequence[float] = (
        *(0.0,) * NUM_SILENT,
        *(
            prior * 2.0 ** (-(bucket + 0.5) / 2)
            for prior in (*_PRIORS, _BIGRAM_PRIOR, _SKIP_PRIOR)
            for bucket in range(BUCKETS)
        ),
        *_COMMON_PRIORS,
    )

    def __init__(self, width: int, max_keys: int, bigrams: Bigrams | None = None) -> None:
        """`bigrams`, of the same width, are asked for tokens without a row."""
        assert bigrams is None or bigrams.width == width
        self._bigrams = bigrams
        self._width = width
        self._max_keys = max_keys
        self._by_one: dict[int, bytes] = {}
        self._by_two: dict[tuple[int, int], bytes] = {}
        self._by_three: dict[Tail, bytes] = {}
        self._by_skip: dict[int, bytes] = {}  # said two tokens after the key
        self._counts: dict[int, int] = {}  # of committed tokens
        self._common: list[int] = []  # the most frequent ones, best first
        self._pack = packer(width)
        self._layout = layout(width)
        self._tail: Tail = (-1, -1, -1)
        self._end = _LAST  # buckets from here on are not named

    def observe(self, tails: Sequence[Tail], rows: Rows, *, is_backward: bool = False) -> None:
        """Learn `rows[i]`, said after `tails[i]`; `is_backward`: the first one last."""
        if not tails:
            return
        packed, size = rows.shared(self._pack), self._layout.size
        begin = rows.first * size
        by_one, by_two, by_three = self._by_one, self._by_two, self._by_three
        by_skip = self._by_skip
        places = range(len(tails))
        for index in reversed(places) if is_backward else places:
            tail = tails[index]
            row = packed[begin + index * size : begin + (index + 1) * size]
            by_one[tail[2]] = by_two[tail[1:]] = by_three[tail] = by_skip[tail[1]] = row
        for table in (by_one, by_two, by_three, by_skip):
            _shrink(table, self._max_keys)

    def __len__(self) -> int:
        """Rows of all tables."""
        tables = (self._by_one, self._by_two, self._by_three, self._by_skip)
        return sum([len(table) for table in tables])

    def count(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens, the prompt's included."""
        counts, common = self._counts, self._common
        for token in tokens:
            counts[token] = counts.get(token, 0) + 1
            if token not in common:
                if len(common) < len(_COMMON_PRIORS):
                    common.append(token)
                elif counts[token] > counts[common[-1]]:
                    common[-1] = token
                else:
                    continue
            common.sort(key=counts.__getitem__, reverse=True)

    def start(self, tail: Tail, least: float = 0.0) -> None:
        """Set the last committed tokens, and the least score worth naming."""
        self._tail = tail
        self._end = _LAST
        if least > 0.0:
            self._end = max(1, min(_LAST, ceil(-2.0 * log2(least))))

    def anchor(self) -> Tail:
        """The last committed tokens."""
        return self._tail

    def advance(self, state: Tail, token: int) -> Tail:
        """The last three tokens after one more."""
        return (state[1], state[2], token)

    def propose(self, state: Tail) -> Proposal:
        """The best successors after the longest known tail, then what shorter ones add."""
        one = self._by_one.get(state[2])
        if one is None:
            return self._guess(state)
        two = self._by_two.get(state[1:])
        three = self._by_three.get(state)
        found: dict[int, int] = {}
        best = self._add(found, one, _ONE if two is None else _ONE + _BACK_OFF)
        if two is not None and two is not one:
            best = self._add(found, two, _TWO if three is None else _TWO + _BACK_OFF)
        if three is not None:
            best = self._add(found, three, _THREE)
        # The best score is above .7, above .5, or below.
        return 3 if best < 1 else 2 if best < 2 else 1, list(found.items())

    def _guess(self, state: Tail) -> Proposal:
        """For a token without a row: what the target says after it alone or, if that was never
        asked, the row of another token in its place, and common tokens."""
        row, code = None, _BIGRAM
        found: dict[int, int] = {}
        if self._bigrams is not None:
            row = self._bigrams.row(state[2])
        if row is None:
            found = {token: _COMMON + rank for rank, token in enumerate(self._common)}
            row, code = self._by_skip.get(state[1]), _SKIP
        if row is not None:
            self._add(found, row, code)
        return 0, list(found.items())

    def _add(self, found: dict[int, int], row: bytes, code: int) -> int:
        """Put a row's tokens over `found`; the bucket of its best score."""
        values = self._layout.unpack(row)
        buckets = values[self._width :]
        end = self._end
        for token, bucket in zip(values, buckets, strict=False):
            if bucket >= end:
                break
            found[token] = code + bucket
        best: int = buckets[0]
        return best


def _shrink(table: dict[Any, bytes], max_keys: int) -> None:
    while len(table) > max_keys:
        del table[next(iter(table))]


class AdjacencyView:
    """A table that several requests fill, read at the last tokens of one of them."""

    priors = AdjacencySource.priors

    def __init__(self, table: AdjacencySource, own: AdjacencySource) -> None:
        """`own` knows the request's last tokens."""
        self.anchor = own.anchor
        self.advance = table.advance
        self.propose = table.propose
