"""Tree attention by kernels of our own: a row's bits depend on its own tokens only.

Each row is computed over its keys in logical order, in blocks at fixed logical positions, with sums
in fp32 (native/attention.inc.c). Tree shape, row count, company, scratch places and chunking drop
out, so speculation is bit-identical to plain decoding in bf16 too.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache
from engine.model.native import Layer, Pass
from engine.model.run_request import RunRequest

MAX_HEAD_DIM = 256  # what the kernel's registers are laid out for
_UNIT_ROWS = 32  # rows per task: more share a loaded block, fewer share the cores better


class NativeStep:
    """One forward pass: where every row's keys lie, told once for all layers."""

    def __init__(
        self, kernels: ctypes.CDLL, kv: KvCache, parts: Sequence[RunRequest], group: int
    ) -> None:
        self._kernels = kernels
        self.kv = kv
        self._arrays = _describe(parts)
        self._num_rows = len(self._arrays["slot_of"])
        units = self._arrays["units"]
        self.native = Pass(
            num_rows=self._num_rows,
            num_units=len(units) // 2,
            kv_heads=kv.shape.num_kv_heads,
            group=group,
            head_dim=kv.shape.head_dim,
            capacity=kv.shape.capacity,
            **{name: array.ctypes.data for name, array in self._arrays.items()},
        )
        self._is_bf16 = int(kv.data.dtype == torch.bfloat16)
        self._threads = torch.get_num_threads()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        """See AttentionStep.attend."""
        heads, rows, head_dim = query.shape[1:]
        output = torch.empty((1, rows, heads, head_dim), dtype=query.dtype)
        if rows > self._num_rows:
            output[0, self._num_rows :].zero_()
        keys, values = self.kv.data[layer]
        call = Layer(
            query=query.data_ptr(),
            key=key.data_ptr(),
            value=value.data_ptr(),
            query_row=query.stride(2),
            query_head=query.stride(1),
            key_row=key.stride(2),
            key_head=key.stride(1),
            value_row=value.stride(2),
            value_head=value.stride(1),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            output=output.data_ptr(),
            scale=rules.scale,
            softcap=rules.softcap or 0.0,
            window=rules.window or 0,
        )
        if self._kernels.treeline_attend(self.native, call, self._is_bf16, self._threads):
            raise MemoryError("no memory for the attention kernel's scratch space")
        return output


def _describe(parts: Sequence[RunRequest]) -> dict[str, npt.NDArray[np.int32]]:
    """The pass's arrays, one entry per row (kernels.c: Pass). O(rows * depth)."""
    slot_of: list[int] = []
    row_of: list[int] = []
    num_keys: list[int] = []
    base: list[int] = []
    path: list[int] = []
    path_start: list[int] = []
    units: list[int] = []
    for part in parts:
        start, rows = len(slot_of), part.num_rows
        first = part.committed_len
        anchor = first + len(part.prefix)
        slot_of += [part.slot] * rows
        row_of += range(first, first + rows)
        num_keys += range(first + 1, anchor + 1)
        base += range(first + 1, anchor + 1)
        path_start += [0] * len(part.prefix)
        if part.tree:
            num_keys += [anchor + depth + 1 for depth in part.tree.depths]
            base += [anchor + 1] * len(part.tree)
            own: list[list[int]] = [[]]
            path_start.append(len(path))
            for node in range(1, len(part.tree)):
                own.append([*own[part.tree.parents[node]], anchor + node])
                path_start.append(len(path))
                path += own[node]
        # Two halves of a lone small tree keep two cores busy.
        size = min(_UNIT_ROWS, max(4, (rows + 1) // 2))
        for begin in range(0, rows, size):
            units += (start + begin, start + min(rows, begin + size))
    columns = {
        "slot_of": slot_of,
        "row_of": row_of,
        "num_keys": num_keys,
        "base": base,
        "path": path or [0],
        "path_start": path_start,
        "units": units,
    }
    return {name: np.array(column, dtype=np.int32) for name, column in columns.items()}
