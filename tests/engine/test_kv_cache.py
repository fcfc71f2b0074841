"""Moving rows of KV: by our kernel as by torch, in every layer and head, and nowhere else."""

import pytest
import torch

from engine.model.kv_cache import KvCache, KvShape
from engine.model.native import load_kernels

SHAPE = KvShape(num_layers=3, num_kv_heads=2, head_dim=5, capacity=12)
MOVES = [(1, 7, 4), (1, 9, 5), (0, 3, 2), (1, 11, 6)]


def filled(dtype: torch.dtype, *, is_native: bool) -> KvCache:
    kernels = load_kernels() if is_native else None
    if is_native and kernels is None:
        pytest.skip("no C compiler")
    cache = KvCache(SHAPE, 2, dtype, torch.device("cpu"), kernels)
    cache.data.copy_(torch.arange(cache.data.numel()).view_as(cache.data))
    return cache


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moved_rows_hold_what_their_sources_held(is_native: bool, dtype: torch.dtype) -> None:
    cache = filled(dtype, is_native=is_native)
    before = cache.data.clone()
    cache.move(())
    assert torch.equal(cache.data, before)
    cache.move(MOVES)
    for slot, source, target in MOVES:
        moved = cache.data[:, :, slot, :, target]
        assert torch.equal(moved, before[:, :, slot, :, source])
        moved.copy_(before[:, :, slot, :, target])
    assert torch.equal(cache.data, before), "nothing else has changed"
