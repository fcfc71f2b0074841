"""Packed rows: ids and half bits of the scores, alike for few rows and for many."""

import numpy as np
import pytest

from engine.spec.drafter import Rows
from engine.spec.packed_rows import BUCKETS, layout, packer


def some(num_rows: int, width: int) -> Rows:
    rng = np.random.default_rng(num_rows)
    ids = rng.integers(0, 150_000, (num_rows, width + 2))
    logits = -np.sort(-rng.normal(0.0, 4.0, (num_rows, width + 2)).astype(np.float32))
    return Rows(ids, logits)


@pytest.mark.parametrize("num_rows", [1, 5, 15, 16, 61])
@pytest.mark.parametrize("width", [1, 4, 10])
def test_a_row_holds_its_best_tokens_and_their_scores(num_rows: int, width: int) -> None:
    rows = some(num_rows, width)
    packed = packer(width)(rows)
    assert len(packed) == num_rows * layout(width).size
    for row, values in enumerate(layout(width).iter_unpack(packed)):
        assert list(values[:width]) == rows.token_ids[row, :width].tolist()
        shares = np.exp(rows.logits[row, :width].astype(float))
        halves = np.floor(-2.0 * np.log2(shares / shares.sum()))
        assert list(values[width:]) == np.minimum(halves, BUCKETS - 1).astype(int).tolist()


def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    rows, size = some(61, 10), layout(10).size
    packed = packer(10)(rows)
    alone = b"".join(packer(10)(rows.part(row, row + 1)) for row in range(61))
    assert [packed[i : i + size] for i in range(0, len(packed), size)] == [
        alone[i : i + size] for i in range(0, len(alone), size)
    ]
