"""Which models token trees can be verified with, decided at start, by name and reason.

A tree row may see its ancestors only. That holds when attention is the one place where rows meet,
when it runs through transformers' attention interface, and when its only rules are a causal mask, a
sliding window and a score cap. Anything else would give wrong text silently, so it is refused.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from engine.errors import ModelError

_PROBE = "treeline_probe"
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
# What some models hand to attention beyond keys and values, and for which ours has no rule.
_FOREIGN_TERMS = {
    "s_aux": "attention sinks",
    "alibi": "ALiBi biases",
    "position_bias": "position biases",
    "head_mask": "head masks",
}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What one layer handed to the attention function."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    foreign: tuple[str, ...]  # reasons, if any, why it cannot be served


def check_config(config: Any) -> None:
    """Refuse by configuration, before any weight is read. Raises ModelError."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise _refusal(name, "it is an encoder-decoder")
    if config.get_text_config() is not config:
        raise _refusal(name, "it is multimodal")
    kinds = set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if kinds:
        raise _refusal(name, f"its layers are of kind {', '.join(sorted(kinds))}")
    if getattr(config, "attention_chunk_size", None):
        raise _refusal(name, "its attention is chunked")
    if getattr(config, "alibi", False):
        raise _refusal(name, f"it needs {_FOREIGN_TERMS['alibi']}")
    if getattr(config, "use_bidirectional_attention", False):
        raise _refusal(name, "its attention is bidirectional")


def check_class(model_class: type) -> None:
    """Refuse by architecture, before any weight is read. Raises ModelError."""
    name = model_class.__name__
    if getattr(model_class, "_is_stateful", False):
        raise _refusal(name, "it carries a recurrent state")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refusal(name, "it does not support transformers' attention interface")


@torch.inference_mode()
def layer_windows(model: Any) -> tuple[int | None, ...]:
    """Run two rows and see what every layer hands to attention.

    Returns each layer's sliding window in tokens, None where it has none. Leaves the model with
    another attention implementation than before. Raises ModelError, naming the reason, if a layer
    does anything that token trees cannot be verified with.
    """
    name = type(model).__name__
    model.set_attn_implementation(_PROBE)
    calls: list[AttentionCall] = []
    rows = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    try:
        model(input_ids=rows, position_ids=positions, use_cache=False, treeline_probe=calls)
    except Exception as error:  # whatever a model's code raises
        raise _refusal(name, f"a first pass fails with {type(error).__name__}: {error}") from error
    if [call.layer for call in calls] != list(range(model.config.num_hidden_layers)):
        raise _refusal(name, "not every layer runs attention through transformers' interface once")
    for call in calls:
        if call.foreign:
            raise _refusal(name, f"it needs {', '.join(call.foreign)}")
        if call.key_dim != call.value_dim:
            raise _refusal(
                name, f"its keys and values differ in size ({call.key_dim} and {call.value_dim})"
            )
    if len({(call.kv_heads, call.key_dim) for call in calls}) != 1:
        raise _refusal(name, "its layers differ in the size of keys and values")
    return tuple(call.window for call in calls)


def _record(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (the interface's signature)
    **terms: Any,
) -> tuple[Tensor, None]:
    """An attention function that only notes how it was called."""
    if "treeline_probe" in terms:
        layer: Any = module.layer_idx
        foreign = (why for term, why in _FOREIGN_TERMS.items() if terms.get(term) is not None)
        terms["treeline_probe"].append(
            AttentionCall(
                layer=layer,
                kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                window=terms.get("sliding_window"),
                foreign=tuple(foreign),
            )
        )
    _, heads, rows, _ = query.shape
    return query.new_zeros((1, rows, heads, value.shape[3])), None


def _refusal(name: str, reason: str) -> ModelError:
    return ModelError(f"Model {name!r} cannot be served: {reason}.")


AttentionInterface.register(_PROBE, _record)
