"""Tree attention by Triton kernels: what a GPU runs, alone or inside a recorded graph.

All that changes from pass to pass stands in PassTensors, at fixed addresses; launches depend on
their sizes only. A row's bits depend on its own tokens only (triton_kernels.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache
from engine.model.packed_pass import PackedPass
from engine.model.pass_tensors import KEY_BLOCK, PassLimits, PassTensors
from engine.model.triton_kernels import attend_units, combine_splits, store_rows

_MOST_SPLITS = 16  # of the longest context: enough programs for every core at one request
_ROW_BLOCK = 64  # rows of a matrix product: rows of a unit x query heads of a KV head
_FP32_ROW_BLOCK = 16  # float32 has no matrix units, and each product is an instruction to compile
_NO_WINDOW = 1 << 30
_WIDE_HEAD = 256  # bytes of one head of one row, above which half of that fits on the chip


class TritonAttention:
    """What all passes over one KV cache share. `group`: query heads per KV head."""

    def __init__(self, kv: KvCache, group: int, largest_tree: int) -> None:
        shape = kv.shape
        self.kv = kv
        self._group = group
        # The interpreter multiplies matrices of bfloat16 wrongly; their products fit float32.
        narrow = torch.float32 if triton.knobs.runtime.interpret else kv.data.dtype
        self._dot_type = getattr(tl, str(narrow).removeprefix("torch."))
        self._group_cells = int(triton.next_power_of_2(group))
        self._dim_cells = max(16, int(triton.next_power_of_2(shape.head_dim)))
        self._is_wide = self._dim_cells * kv.data.element_size() > _WIDE_HEAD
        block = _ROW_BLOCK // (2 if self._is_wide else 1)
        if kv.data.dtype == torch.float32:
            block = _FP32_ROW_BLOCK
        self._row_block = max(block, self._group_cells)
        self.rows_per_unit = self._row_block // self._group_cells
        # A row's own path and the block before it span two splits at most.
        least = max(-(-shape.capacity // _MOST_SPLITS), KEY_BLOCK + largest_tree, 4 * KEY_BLOCK)
        self.split_len = -(-least // KEY_BLOCK) * KEY_BLOCK
        self.num_splits = -(-shape.capacity // self.split_len)

    def tensors(self, limits: PassLimits) -> PassTensors:
        """Room for a pass, to be written and then attended with."""
        return PassTensors(limits, self.rows_per_unit, self.kv.data.device)

    def step(self, packed: PackedPass, rows: int) -> "TritonStep":
        """Attention for one pass that is not recorded, padded to `rows`."""
        tensors = self.tensors(PassLimits.of(packed, rows, self.rows_per_unit))
        tensors.write(packed)
        return self.over(tensors)

    def over(self, tensors: PassTensors) -> "TritonStep":
        """Attention for whatever passes `tensors` will hold."""
        return TritonStep(self, tensors)

    def launch(self, layer: int, query: Tensor, tensors: PassTensors, rules: LayerRules) -> Tensor:
        """Attend with `query` [1, heads, rows, head_dim] over the rows that the cache holds."""
        heads, rows, head_dim = query.shape[1:]
        kv_heads = heads // self._group
        keys, values = self.kv.data[layer]
        cells = (self.num_splits, rows, heads)
        maxima, sums = query.new_empty((2, *cells), dtype=torch.float32)
        averages = query.new_empty((*cells, head_dim), dtype=torch.float32)
        output = query.new_empty((1, rows, heads, head_dim))
        # First what rows share, then each row's own; a row's own goes on from what it shares.
        for units, num_splits in ((tensors.shared_units, self.num_splits), (tensors.own_units, 2)):
            attend_units[(len(units), kv_heads, num_splits)](
                query,
                keys,
                values,
                maxima,
                sums,
                averages,
                units,
                tensors.slots,
                tensors.positions,
                tensors.bases,
                tensors.path_starts,
                tensors.path,
                query.stride(1),
                query.stride(2),
                keys.stride(0),
                keys.stride(1),
                rows,
                rules.scale,
                rules.softcap or 0.0,
                rules.window or _NO_WINDOW,
                SPLIT_LEN=self.split_len,
                GROUP=self._group,
                GROUP_CELLS=self._group_cells,
                HEAD_DIM=head_dim,
                BLOCK_M=self._row_block,
                BLOCK_N=KEY_BLOCK,
                BLOCK_D=self._dim_cells,
                DOT=self._dot_type,
                num_warps=4,
                num_stages=1 if self._is_wide else 2,
            )
        combine_splits[(rows, kv_heads)](
            maxima,
            sums,
            averages,
            tensors.slots,
            tensors.positions,
            output,
            rows,
            SPLIT_LEN=self.split_len,
            GROUP=self._group,
            GROUP_CELLS=self._group_cells,
            HEAD_DIM=head_dim,
            BLOCK_D=self._dim_cells,
        )
        return output

    def store(self, layer: int, key: Tensor, value: Tensor, tensors: PassTensors) -> None:
        """Write the rows' `key` and `value`, each [1, kv_heads, rows, head_dim], to their slots."""
        kv_heads, rows, head_dim = key.shape[1:]
        keys, values = self.kv.data[layer]
        store_rows[(rows, kv_heads)](
            key,
            value,
            keys,
            values,
            tensors.slots,
            tensors.stores,
            key.stride(1),
            key.stride(2),
            value.stride(1),
            value.stride(2),
            keys.stride(0),
            keys.stride(1),
            HEAD_DIM=head_dim,
            BLOCK_D=self._dim_cells,
        )


class TritonStep:
    """One forward pass over what `tensors` describe."""

    def __init__(self, attention: TritonAttention, tensors: PassTensors) -> None:
        self._attention = attention
        self._tensors = tensors

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        """See AttentionStep.attend."""
        self._attention.store(layer, key, value, self._tensors)
        return self._attention.launch(layer, query, self._tensors, rules)
