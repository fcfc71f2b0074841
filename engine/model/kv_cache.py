"""The KV tensor: contiguous slots, committed rows first, scratch rows for trees behind them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a model needs of each slot."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    capacity: int  # rows: longest context + largest tree


class KvCache:
    """`data`: [layers, 2, slots, kv_heads, capacity, head_dim], keys at index 0, values at 1.

    Memory is reserved, not touched: on a CPU a row costs real memory once it is first written.
    """

    def __init__(
        self,
        shape: KvShape,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        kernels: ctypes.CDLL | None = None,
    ) -> None:
        """`kernels`: our own, if they run where `data` is."""
        self.shape = shape
        self._kernels = kernels
        self.data = torch.empty(
            (shape.num_layers, 2, num_slots, shape.num_kv_heads, shape.capacity, shape.head_dim),
            dtype=dtype,
            device=device,
        )

    def layer(self, index: int, slot: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer and slot, each [kv_heads, capacity, head_dim]."""
        pair = self.data[index, :, slot]
        return pair[0], pair[1]

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy rows (slot, source row, destination row) in all layers. No move's source is an
        earlier move's destination."""
        if not moves:
            return
        if self._kernels is not None:
            layers, pair, slots, heads, capacity, _ = self.data.shape
            row_bytes = self.shape.head_dim * self.data.element_size()
            table = np.array(moves, np.int32)
            self._kernels.treeline_move(
                self.data.data_ptr(),
                *(layers * pair, slots, heads, capacity, row_bytes),
                *(table.ctypes.data, len(moves)),
            )
            return
        slots, sources, targets = torch.tensor(list(zip(*moves, strict=True))).to(self.data.device)
        self.data[:, :, slots, :, targets] = self.data[:, :, slots, :, sources]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` rows from one slot to another."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]
