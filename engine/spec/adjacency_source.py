"""The target's own earlier answers as a source of `auto`: what it said after the same last tokens.

Rows are kept as bytes with their scores already turned into codes, so that proposing costs one
look-up and one unpacking.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, exp, log2
from typing import Any

from engine.spec.drafter import Rows
from engine.spec.token_source import NUM_SILENT, Proposal

Tail = tuple[int, int, int]  # the last three tokens, -1 where there is none

_LOG2_E = 1.4426950408889634
_BUCKETS = 16  # half bits of -log2 of the score
_LAST = NUM_SILENT + _BUCKETS - 1  # all scores from here down: not worth naming
# Acceptance over score: by number of known tokens, then of what such a row adds to a longer one's.
_PRIORS = (0.5, 0.7, 0.85, 0.2, 0.3)
_BACK_OFF = 3 * _BUCKETS
# For a token without a row: what was said after another token in its place, and the commonest.
_SKIP_PRIOR, _SKIP = 0.15, 5 * _BUCKETS
_COMMON_PRIORS = (0.06, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02, 0.02, 0.015, 0.015, 0.01, 0.01)
_COMMON = NUM_SILENT + 6 * _BUCKETS


class AdjacencySource:
    """The best `width` successors after the last three, two and one tokens; the longest wins.

    Features: how many tokens matched, whether more did for others, and the score's bucket. The
    score is the softmax over the `width` best logits alone; what that overstates, calibration takes
    back. Scores below `least` are not named. Later rows overwrite earlier ones; of more than
    `max_keys` keys the first learned leave.
    """

    priors: Sequence[float] = (
        *(0.0,) * NUM_SILENT,
        *(
            prior * 2.0 ** (-(bucket + 0.5) / 2)
            for prior in (*_PRIORS, _SKIP_PRIOR)
            for bucket in range(_BUCKETS)
        ),
        *_COMMON_PRIORS,
    )

    def __init__(self, width: int, max_keys: int) -> None:
        self._width = width
        self._max_keys = max_keys
        self._by_one: dict[int, bytes] = {}
        self._by_two: dict[tuple[int, int], bytes] = {}
        self._by_three: dict[Tail, bytes] = {}
        self._by_skip: dict[int, bytes] = {}  # said two tokens after the key
        self._counts: dict[int, int] = {}  # of committed tokens
        self._common: list[int] = []  # the most frequent ones, best first
        self._pack = _packer(width)
        self._layout = _layout(width)
        self._tail: Tail = (-1, -1, -1)
        self._end = _LAST  # codes from here on are not named

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
            self._end = NUM_SILENT + max(1, min(_BUCKETS - 1, ceil(-2.0 * log2(least))))

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
            return 0, self._guess(state[1])
        two = self._by_two.get(state[1:])
        three = self._by_three.get(state)
        found: dict[int, int] = {}
        best = self._add(found, one, 0 if two is None else _BACK_OFF)
        if two is not None and two is not one:
            best = self._add(found, two, _BUCKETS + (0 if three is None else _BACK_OFF))
        if three is not None:
            best = self._add(found, three, 2 * _BUCKETS)
        # The best score is above .7, above .5, or below.
        return 3 if best < 1 else 2 if best < 2 else 1, list(found.items())

    def _guess(self, previous: int) -> list[tuple[int, int]]:
        """For a token without a row: the row of another token in its place, and common tokens."""
        found = {token: _COMMON + rank for rank, token in enumerate(self._common)}
        row = self._by_skip.get(previous)
        if row is not None:
            self._add(found, row, _SKIP)
        return list(found.items())

    def _add(self, found: dict[int, int], row: bytes, offset: int) -> int:
        """Put a row's tokens over `found`; the bucket of its best score."""
        values = self._layout.unpack(row)
        codes = values[self._width :]
        end = self._end
        for token, code in zip(values, codes, strict=False):
            if code >= end:
                break
            found[token] = code + offset
        best: int = codes[0] - NUM_SILENT
        return best


@cache
def _layout(width: int) -> struct.Struct:
    return struct.Struct(f"<{width}i{width}b")


@cache
def _packer(width: int) -> Callable[[Rows], bytes]:
    """Turns rows into bytes: `width` ids of four bytes each, then as many codes of one.

    In plain Python: for the few rows of most steps a dozen numpy calls take twice as long.
    """
    layout = _layout(width)

    def pack(rows: Rows) -> bytes:
        packed = []
        for ids, logits in zip(
            rows.token_ids[:, :width].tolist(), rows.logits[:, :width].tolist(), strict=True
        ):
            best = logits[0]
            total = log2(sum([exp(logit - best) for logit in logits]))
            shares = [total + (best - logit) * _LOG2_E for logit in logits]  # -log2 of the score
            codes = [NUM_SILENT + int(min(_BUCKETS - 1, 2.0 * share)) for share in shares]
            packed.append(layout.pack(*ids, *codes))
        return b"".join(packed)

    return pack


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
