"""Tree attention over KV slots, registered with transformers' attention interface.

The model is called without a cache: keys and values of the packed rows reach `attend` first, and
it alone writes and reads the slots. This is the only file that knows about masks. A row sees its
request's committed prefix, its ancestors in the tree and itself; a sliding window cuts by position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.model.kv_cache import KvCache

NAME = "treeline"


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows [start, start + num_rows) of a packed pass: one request's tree.

    `ancestors`: [num_rows, num_rows] bool, on the device; None for a single row.
    `depths`: [num_rows], for windows.
    """

    slot: int
    committed_len: int
    start: int
    num_rows: int
    ancestors: Tensor | None
    depths: Tensor


@dataclass(slots=True)
class AttentionStep:
    """What `attend` needs to know about the pass in flight."""

    kv: KvCache
    segments: Sequence[Segment]
    dtype: torch.dtype
    group: int  # query heads per KV head
    layers_seen: set[int] = field(default_factory=set)
    _masks: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)

    def mask(self, index: int, window: int | None) -> Tensor | None:
        """Additive mask [group * num_rows, committed_len + num_rows] of a segment, None: see all.

        Built once a pass for each window size, not once a layer.
        """
        key = (index, window)
        if key not in self._masks:
            self._masks[key] = self._build_mask(self.segments[index], window)
        return self._masks[key]

    def _build_mask(self, segment: Segment, window: int | None) -> Tensor | None:
        length, rows = segment.committed_len, segment.num_rows
        is_cut = window is not None and length + int(segment.depths.max()) >= window
        if segment.ancestors is None and not is_cut:
            return None
        device = segment.depths.device
        mask = torch.zeros((rows, length + rows), dtype=self.dtype, device=device)
        if segment.ancestors is not None:
            mask[:, length:].masked_fill_(~segment.ancestors, -torch.inf)
        if window is not None and is_cut:
            key_positions = torch.cat(
                (torch.arange(length, device=device), length + segment.depths)
            )
            query_positions = (length + segment.depths)[:, None]
            mask.masked_fill_(query_positions - key_positions[None, :] >= window, -torch.inf)
        return mask.repeat(self.group, 1)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    treeline_step: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over all segments of a packed pass.

    `query`: [1, heads, rows, head_dim]; `key`, `value`: [1, kv_heads, rows, head_dim], positions
    already applied. Returns [1, rows, heads, head_dim]. Padding rows behind the last segment
    give zeros.
    """
    step, layer = treeline_step, cast(int, module.layer_idx)
    step.layers_seen.add(layer)
    heads, rows, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    output = query.new_zeros((1, rows, heads, head_dim))
    for index, segment in enumerate(step.segments):
        begin, end = segment.start, segment.start + segment.num_rows
        first, last = segment.committed_len, segment.committed_len + segment.num_rows
        keys, values = step.kv.layer(layer, segment.slot)
        keys[:, first:last] = key[0, :, begin:end]
        values[:, first:last] = value[0, :, begin:end]
        # Query heads of one KV head become further rows: no head of K or V is ever repeated.
        queries = query[0, :, begin:end].reshape(1, kv_heads, -1, head_dim)
        mask = step.mask(index, sliding_window)
        seen = (queries, keys[None, :, :last], values[None, :, :last])
        if softcap is None:
            result = F.scaled_dot_product_attention(*seen, attn_mask=mask, scale=scale)
        else:
            result = _softcapped(*seen, mask, scale, softcap)
        result = result.reshape(heads, segment.num_rows, head_dim)
        output[0, begin:end] = result.transpose(0, 1)
    return output, None


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention with tanh-capped scores (Gemma 2)."""
    scores = torch.tanh(query @ key.transpose(-1, -2) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value


AttentionInterface.register(NAME, attend)
