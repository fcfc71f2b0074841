"""The target's own earlier answers as a source of `auto`: what it said after the same last tokens.

Rows are kept as bytes with their scores already turned into codes, so that proposing costs one
look-up and one unpacking.
"""

import struct
from collections.abc import Sequence

import numpy as np

from engine.spec.drafter import Rows
from engine.spec.token_source import NUM_SILENT, Proposal

Tail = tuple[int, int, int]  # the last three tokens, -1 where there is none

_BUCKETS = 16  # half bits of -log2 of the score
_TIERS = 3
_TIER_PRIORS = (0.5, 0.7, 0.85, 0.2, 0.3)  # acceptance over score, by tier; then as a back-off
_LAST = NUM_SILENT + _BUCKETS - 1  # too unlikely to be named


class AdjacencySource:
    """The best `width` successors after the last three, two or one tokens; the longest wins.

    Features: how many tokens matched, and the score's bucket. The score is the softmax over the
    `width` best logits alone; what that overstates, calibration takes back. Later rows overwrite
    earlier ones; each tier keeps `max_keys` keys, the oldest leave first.
    """

    priors: Sequence[float] = (
        *(0.0,) * NUM_SILENT,
        *(
            prior * 2.0 ** (-(bucket + 0.5) / 2)
            for prior in _TIER_PRIORS
            for bucket in range(_BUCKETS)
        ),
    )

    def __init__(self, width: int, max_keys: int) -> None:
        self._width = width
        self._max_keys = max_keys
        self._tiers: tuple[dict[Tail, bytes], ...] = tuple({} for _ in range(_TIERS))
        self._layout = struct.Struct(f"<{width}i{width}b")
        self._tail: Tail = (-1, -1, -1)

    def observe(self, tails: Sequence[Tail], rows: Rows) -> None:
        """Learn `rows[i]`, said after `tails[i]`."""
        if not tails:
            return
        ids, logits = rows.token_ids[:, : self._width], rows.logits[:, : self._width]
        scores = np.exp(logits - logits[:, :1])
        scores /= scores.sum(axis=1, keepdims=True)
        codes = np.minimum(-2.0 * np.log2(np.maximum(scores, 1e-9)), _BUCKETS - 1)
        packed = np.concatenate(
            (
                ids.astype("<i4").view(np.int8).reshape(len(ids), -1),
                codes.astype(np.int8) + np.int8(NUM_SILENT),
            ),
            axis=1,
        ).tobytes()
        size = self._layout.size
        by_one, by_two, by_three = self._tiers
        for index, tail in enumerate(tails):
            row = packed[index * size : (index + 1) * size]
            by_one[-1, -1, tail[2]] = row
            by_two[-1, tail[1], tail[2]] = row
            by_three[tail] = row
        for tier in self._tiers:
            while len(tier) > self._max_keys:
                del tier[next(iter(tier))]

    def start(self, tail: Tail) -> None:
        """Set the last committed tokens."""
        self._tail = tail

    def anchor(self) -> Tail:
        """The last committed tokens."""
        return self._tail

    def advance(self, state: Tail, token: int) -> Tail:
        """The last three tokens after one more."""
        return (state[1], state[2], token)

    def propose(self, state: Tail) -> Proposal:
        """The best successors after the longest known tail, then what shorter ones add."""
        _, previous, last = state
        by_one, by_two, by_three = self._tiers
        rows = (
            (by_three.get(state), 2 * _BUCKETS),
            (by_two.get((-1, previous, last)), _BUCKETS),
            (by_one.get((-1, -1, last)), 0),
        )
        width = self._width
        silent, backs_off = 0, 0
        found: dict[int, int] = {}
        for row, offset in rows:
            if row is None:
                continue
            values = self._layout.unpack(row)
            if not silent:
                best = values[width] - NUM_SILENT
                silent = 3 if best < 1 else 2 if best < 2 else 1  # top score above .7, .5, or below
            offset += backs_off
            for token, code in zip(values, values[width:], strict=False):
                if code >= _LAST:
                    break
                if token not in found:
                    found[token] = code + offset
            backs_off = 3 * _BUCKETS
        return silent, list(found.items())
