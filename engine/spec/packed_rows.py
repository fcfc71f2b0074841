"""Rows as bytes: ids and scores of a row's best tokens, ready to be looked up and read at once.

A score is the softmax over the row's kept tokens alone, in buckets of half a bit. What that
overstates, calibration takes back.
"""

import struct
from collections.abc import Callable
from functools import cache
from math import exp, log2

import numpy as np

from engine.spec.drafter import Rows

BUCKETS = 16  # half bits of -log2 of the score; the last one takes all scores from there down
_LOG2_E = 1.4426950408889634
_MANY = 16  # rows: for fewer, plain Python takes half the time of a dozen numpy calls


@cache
def layout(width: int) -> struct.Struct:
    """One row: `width` ids of four bytes each, then as many buckets of one, best first."""
    return struct.Struct(f"<{width}i{width}b")


@cache
def packer(width: int) -> Callable[[Rows], bytes]:
    """What packs rows, one after the other."""
    row_layout = layout(width)

    def pack(rows: Rows) -> bytes:
        if len(rows.token_ids) >= _MANY:
            return _pack_at_once(rows, width)
        packed = []
        for ids, logits in zip(
            rows.token_ids[:, :width].tolist(), rows.logits[:, :width].tolist(), strict=True
        ):
            best = logits[0]
            total = log2(sum([exp(logit - best) for logit in logits]))
            shares = [total + (best - logit) * _LOG2_E for logit in logits]  # -log2 of the score
            buckets = [int(min(BUCKETS - 1, 2.0 * share)) for share in shares]
            packed.append(row_layout.pack(*ids, *buckets))
        return b"".join(packed)

    return pack


def _pack_at_once(rows: Rows, width: int) -> bytes:
    logits = rows.logits[:, :width].astype(np.float64)
    below = logits[:, :1] - logits
    shares = np.log2(np.exp(-below).sum(axis=1, keepdims=True)) + below * _LOG2_E
    packed = np.empty((len(logits), layout(width).size), np.uint8)
    packed[:, : 4 * width] = rows.token_ids[:, :width].astype("<i4").view(np.uint8)
    packed[:, 4 * width :] = np.minimum(2.0 * shares, BUCKETS - 1)
    return packed.tobytes()
