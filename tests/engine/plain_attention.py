"""Attention over PassTensors in plain torch, row by row: what the GPU's kernels must compute."""

import torch
from torch import Tensor

from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache
from engine.model.packed_pass import PackedPass
from engine.model.pass_tensors import PassLimits, PassTensors


class PlainAttention:
    """Stands in for TritonAttention where there is no Triton."""

    rows_per_unit = 4
    split_len = 64

    def __init__(self, kv: KvCache) -> None:
        self.kv = kv

    def tensors(self, limits: PassLimits) -> PassTensors:
        return PassTensors(limits, self.rows_per_unit, torch.device("cpu"))

    def over(self, tensors: PassTensors) -> "PlainStep":
        return PlainStep(self.kv, tensors)

    def step(self, packed: PackedPass, rows: int) -> "PlainStep":
        tensors = self.tensors(PassLimits.of(packed, rows, self.rows_per_unit))
        tensors.write(packed)
        return self.over(tensors)


class PlainStep:
    def __init__(self, kv: KvCache, tensors: PassTensors) -> None:
        self._kv = kv
        self._tensors = tensors

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        heads, rows, head_dim = query.shape[1:]
        tensors, pair = self._tensors, self._kv.data[layer]
        used = [row for row in range(rows) if tensors.slots[row] >= 0]
        for row in used:
            place = pair[:, tensors.slots[row], :, tensors.stores[row]]
            place.copy_(torch.stack((key[0, :, row], value[0, :, row])))
        output = query.new_zeros((1, rows, heads, head_dim))
        shared = {  # every unit's rows
            int(row): unit
            for unit in tensors.shared_units
            for row in range(int(unit[0]), int(unit[0] + unit[1]))
        }
        for row in used:
            position, first = int(tensors.positions[row]), 0
            if rules.window is not None:
                first = max(0, position - rules.window + 1)
            start, count, low, high = tensors.own_units[row].tolist()
            assert (start, count, high) == (row, 1, position + 1)
            assert min(low, high) <= shared[row][3] <= low, "a key is in no unit, or in two"
            base, path = int(tensors.bases[row]), int(tensors.path_starts[row])
            lies = [
                at if at < base else int(tensors.path[path + at - base])
                for at in range(first, position + 1)
            ]
            keys, values = pair[:, tensors.slots[row], :, lies]
            asked = query[0, :, row].view(len(keys), -1, head_dim)
            scores = asked.float() @ keys.float().transpose(1, 2) * rules.scale
            if rules.softcap is not None:
                scores = torch.tanh(scores / rules.softcap) * rules.softcap
            output[0, row] = (scores.softmax(-1) @ values.float()).view(heads, head_dim)
        return output
