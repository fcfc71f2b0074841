"""Tree attention by torch's scaled dot product: any device, any head size, the tests' oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache
from engine.model.run_request import RunRequest


@dataclass(frozen=True, slots=True)
class _Segment:
    """The rows [start, start + num_rows) of a packed pass: one request's chain and tree."""

    slot: int
    committed_len: int
    start: int
    num_rows: int
    ancestors: Tensor | None  # [num_rows, num_rows] bool; None for a single row
    depths: Tensor  # [num_rows]


class SdpaStep:
    """One forward pass. Masks are built once a pass for each window size, not once a layer."""

    def __init__(self, kv: KvCache, parts: Sequence[RunRequest], group: int) -> None:
        self._kv = kv
        self._group = group
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self._segments: list[_Segment] = []
        start = 0
        for part in parts:
            self._segments.append(_segment(part, start, kv.data.device))
            start += part.num_rows

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        """See AttentionStep.attend."""
        heads, rows, head_dim = query.shape[1:]
        output = query.new_zeros((1, rows, heads, head_dim))
        for index, segment in enumerate(self._segments):
            begin, end = segment.start, segment.start + segment.num_rows
            first, last = segment.committed_len, segment.committed_len + segment.num_rows
            keys, values = self._kv.layer(layer, segment.slot)
            keys[:, first:last] = key[0, :, begin:end]
            values[:, first:last] = value[0, :, begin:end]
            # Query heads of one KV head become further rows: no head of K or V is ever repeated.
            queries = query[0, :, begin:end].reshape(1, key.shape[1], -1, head_dim)
            seen = (queries, keys[None, :, :last], values[None, :, :last])
            mask = self._mask(index, rules.window)
            if rules.softcap is None:
                result = F.scaled_dot_product_attention(*seen, attn_mask=mask, scale=rules.scale)
            else:
                result = _softcapped(*seen, mask, rules.scale, rules.softcap)
            result = result.reshape(heads, segment.num_rows, head_dim)
            output[0, begin:end] = result.transpose(0, 1)
        return output

    def _mask(self, index: int, window: int | None) -> Tensor | None:
        """Additive mask [group * num_rows, committed_len + num_rows]; None: see all."""
        key = (index, window)
        if key not in self._masks:
            self._masks[key] = self._build_mask(self._segments[index], window)
        return self._masks[key]

    def _build_mask(self, segment: _Segment, window: int | None) -> Tensor | None:
        length, rows = segment.committed_len, segment.num_rows
        is_cut = window is not None and length + int(segment.depths.max()) >= window
        if segment.ancestors is None and not is_cut:
            return None
        device = segment.depths.device
        mask = torch.zeros((rows, length + rows), dtype=self._kv.data.dtype, device=device)
        if segment.ancestors is not None:
            mask[:, length:].masked_fill_(~segment.ancestors, -torch.inf)
        if window is not None and is_cut:
            prefix = torch.arange(length, device=device)
            key_positions = torch.cat((prefix, length + segment.depths))
            query_positions = (length + segment.depths)[:, None]
            mask.masked_fill_(query_positions - key_positions[None, :] >= window, -torch.inf)
        return mask.repeat(self._group, 1)


def _segment(part: RunRequest, start: int, device: torch.device) -> _Segment:
    """The rows' visibility: the prefix is a chain, the tree hangs from its end."""
    chain, rows = len(part.prefix), part.num_rows
    depths = np.arange(rows)
    ancestors: Tensor | None = None
    if rows > 1:
        mask = np.tri(rows, dtype=np.bool_)
        if part.tree:
            mask[chain:, chain:] = part.tree.ancestor_mask()
        ancestors = torch.from_numpy(mask).to(device)
    if part.tree:
        depths[chain:] = np.asarray(part.tree.depths) + chain
    depth_tensor = torch.from_numpy(depths).to(device)
    return _Segment(part.slot, part.committed_len, start, rows, ancestors, depth_tensor)


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention with tanh-capped scores (Gemma 2)."""
    scores = torch.tanh(query @ key.transpose(-1, -2) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value
