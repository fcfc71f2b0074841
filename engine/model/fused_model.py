"""A whole pass of a Llama model without the framework's way through it: four calls of our kernels.

What transformers does around the layers (masks that nobody reads, angles computed anew, hooks)
takes as long as a tenth of the weights take to read. The twin of a model replaces it only after
both gave the same logits, bit for bit.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.forward import forward
from engine.model.fused_decoder import FusedDecoders
from engine.model.fusing import FusedRmsNorm
from engine.model.kv_cache import KvCache, KvShape
from engine.model.native_attention import NativeStep
from engine.model.native_linear import NativeLinear
from engine.model.packed_pass import PackedPass
from engine.model.run_request import RunRequest
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree

# Kinds of rotary positions whose angles depend on nothing but the position.
_STATIC_ROPES = ("default", "linear", "llama3", "yarn")
_TREE = ((5, -1), (9, 0), (2, 0), (6, 2))  # tokens and parents of what the twin is tried on
_ODD_PLACES = 7  # positions at a time at which the table of angles is checked


class FusedModel:
    """Embedding, fused layers, norm and language-model head over the rows of one packed pass."""

    def __init__(self, model: Any, num_positions: int) -> None:
        """`model` must satisfy `_has_known_parts`."""
        inner = model.model
        self._embedding: Tensor = inner.embed_tokens.weight.detach()
        self._decoders: FusedDecoders = inner.layers[0]
        self._norm, self._head = inner.norm, model.lm_head
        places = torch.arange(num_positions)[None]
        cosines, sines = inner.rotary_emb(self._embedding[:1], position_ids=places)
        self._cosines, self._sines = cosines[0].contiguous(), sines[0].contiguous()

    def __call__(self, packed: PackedPass, step: NativeStep) -> Tensor:
        """Logits [reads, vocab] of the rows that are read."""
        places = torch.tensor(packed.positions)
        hidden = self._embedding[torch.tensor(packed.token_ids)]
        self._decoders.run(hidden, self._cosines[places], self._sines[places], step)
        if len(packed.reads) < len(packed):
            hidden = hidden[torch.tensor(packed.reads, dtype=torch.long)]
        logits: Tensor = self._head(self._norm(hidden))
        return logits

    def knows(self, rotary: nn.Module, places: Sequence[int]) -> bool:
        """Whether the angles at `places` are those that `rotary` gives for them at once."""
        index = torch.tensor(places)
        cosines, sines = rotary(self._embedding[:1], position_ids=index[None])
        return torch.equal(cosines[0], self._cosines[index]) and torch.equal(
            sines[0], self._sines[index]
        )


@torch.inference_mode()
def fuse_model(model: Any, kernels: ctypes.CDLL, shape: KvShape, group: int) -> FusedModel | None:
    """The twin of a model whose layers are fused, if it gives the same bits. `shape`: of the KV,
    whose capacity no position exceeds. `group`: query heads per KV head."""
    if not _has_known_parts(model):
        return None
    twin = FusedModel(model, shape.capacity)
    last = shape.capacity - 1
    places = [[at + i for i in range(_ODD_PLACES) if at + i <= last] for at in (0, last // 2, last)]
    if not all(twin.knows(model.model.rotary_emb, some) for some in places):
        return None
    packed, steps = _trial(kernels, shape, group)
    expected = forward(model, packed, steps[0], torch.device("cpu"))
    is_same = torch.equal(twin(packed, steps[1]), expected)
    return twin if is_same and torch.equal(steps[0].kv.data, steps[1].kv.data) else None


def _has_known_parts(model: Any) -> bool:
    inner = getattr(model, "model", None)
    layers = list(getattr(inner, "layers", ()))
    return (
        len(layers) == 1
        and isinstance(layers[0], FusedDecoders)
        and type(getattr(inner, "embed_tokens", None)) is nn.Embedding
        and isinstance(getattr(inner, "norm", None), FusedRmsNorm)
        and getattr(getattr(inner, "rotary_emb", None), "rope_type", None) in _STATIC_ROPES
        and isinstance(getattr(model, "lm_head", None), NativeLinear)
    )


def _trial(kernels: ctypes.CDLL, shape: KvShape, group: int) -> tuple[PackedPass, list[NativeStep]]:
    """A prompt's end with a tree, whose rows are read, behind a chunk that nobody reads; and two
    steps over fresh KV for it."""
    tree = TokenTree.anchored(_TREE[0][0])
    for token, parent in _TREE[1:]:
        tree.add(parent, token)
    parts = [RunRequest(0, 0, [1, 4, 1], None, Needs()), RunRequest(1, 0, [3, 1], tree, Needs())]
    small = KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, parts[1].num_rows)
    caches = [KvCache(small, 2, torch.bfloat16, torch.device("cpu")) for _ in range(2)]
    for cache in caches:
        cache.data.zero_()
    return PackedPass.of(parts), [NativeStep(kernels, cache, parts, group) for cache in caches]
