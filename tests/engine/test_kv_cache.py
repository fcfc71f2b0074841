"""Moving rows of KV: by our kernel as by torch, in every layer and head, and nowhere else."""

import ctypes

import pytest
import torch

from engine.model.kv_cache import KvCache, KvShape
from engine.model.native import load_kernels

SHAPE = KvShape(num_layers=3, num_kv_heads=2, head_dim=5, capacity=12)
MOVES = [(1, 7, 4), (1, 9, 5), (0, 3, 2), (1, 11, 6)]


WAYS = [None, load_kernels()] if load_kernels() is not None else [None]


def filled(dtype: torch.dtype, kernels: ctypes.CDLL | None) -> KvCache:
    cache = KvCache(SHAPE, 2, dtype, torch.device("cpu"), kernels)
    cache.data.copy_(torch.arange(cache.data.numel()).view_as(cache.data))
    return cache


@pytest.mark.parametrize("kernels", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moved_rows_hold_what_their_sources_held(
    kernels: ctypes.CDLL | None, dtype: torch.dtype
) -> None:
    cache = filled(dtype, kernels)
    before = cache.data.clone()
    cache.move(())
    assert torch.equal(cache.data, before)
    cache.move(MOVES)
    for slot, source, target in MOVES:
        moved = cache.data[:, :, slot, :, target]
        assert torch.equal(moved, before[:, :, slot, :, source])
        moved.copy_(before[:, :, slot, :, target])
    assert torch.equal(cache.data, before), "nothing else has changed"
