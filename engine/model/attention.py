"""Treeline's place in transformers' attention interface.

The model is called without a cache: queries, keys and values of the packed rows reach `attend`
first, and the step object in the keyword arguments owns the KV slots. A row sees its request's
committed prefix, its ancestors in the tree and itself; a sliding window cuts by position. Masks
live in the step's backend alone: `native_attention` on a CPU, `sdpa_attention` elsewhere.
"""

from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "treeline"


@dataclass(frozen=True, slots=True)
class LayerRules:
    """How one layer scores keys."""

    scale: float
    window: int | None  # tokens, the row itself included
    softcap: float | None


class AttentionStep(Protocol):
    """Attention for one forward pass over the packed rows of many requests."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        """Write the rows' KV into their slots and attend.

        `query`: [1, heads, rows, head_dim]; `key`, `value`: [1, kv_heads, rows, head_dim], with
        positions applied. Returns [1, rows, heads, head_dim]; padding rows give zeros.
        """
        ...


def attend(  # noqa: PLR0913 (transformers' signature)
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    *,
    treeline_step: AttentionStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = LayerRules(scale, sliding_window, softcap)
    return treeline_step.attend(cast(int, module.layer_idx), query, key, value, rules), None


AttentionInterface.register(NAME, attend)
