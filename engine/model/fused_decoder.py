"""Decoder layers of the Llama kind as one call, where our own kernels compute all of them.

A step of few rows is over so fast that the framework's way from one operation to the next took
half of it. A twin replaces a layer only after both gave the same bits and wrote the same keys and
values, so a layer of a familiar shape that computes something else keeps its own code.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.attention import AttentionStep, LayerRules
from engine.model.fusing import FusedGatedMlp, FusedRmsNorm
from engine.model.kv_cache import KvCache, KvShape
from engine.model.native import Decoder
from engine.model.native_attention import NativeStep
from engine.model.native_linear import NativeLinear
from engine.model.run_request import RunRequest
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree

_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
_HEAD_NORMS = {"q_norm": "query_norm", "k_norm": "key_norm"}
_TREE = ([3, 1, 4, 1, 5], [-1, 0, 0, 1, 2])  # tokens and parents of what twins are tried on,
_PREFIX = 40  # behind so many tokens


class FusedDecoders(nn.Module):
    """Layers that follow each other: norm, attention, residual, norm, gated MLP, residual."""

    def __init__(
        self, layers: Sequence[nn.Module], rules: Sequence[LayerRules], kernels: ctypes.CDLL
    ) -> None:
        """All `layers` must satisfy `can_fuse`; `rules`: how each attends."""
        super().__init__()
        self._layers = nn.ModuleList(layers)  # keeps the memory that is pointed at
        self._kernels = kernels
        natives = [_native(layer, own) for layer, own in zip(layers, rules, strict=True)]
        self._native = (Decoder * len(natives))(*natives)
        first = natives[0]
        self._first: int = layers[0].get_submodule("self_attn").layer_idx  # type: ignore[assignment]
        self._columns = (
            first.output.outputs
            + 2 * (first.query.outputs + first.key.outputs)
            + 3 * first.down.inputs
        )
        self._scratch = torch.empty(0, dtype=torch.bfloat16)  # of the largest pass so far

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        treeline_step: AttentionStep,
        **others: Any,
    ) -> Tensor:
        """[1, rows, hidden] -> [1, rows, hidden], as transformers calls a layer. A step that
        attends by other means gets the layers themselves."""
        if not isinstance(treeline_step, NativeStep):
            for layer in self._layers:
                hidden_states = layer(
                    hidden_states,
                    position_embeddings=position_embeddings,
                    treeline_step=treeline_step,
                    **others,
                )
            return hidden_states
        hidden = hidden_states.clone(memory_format=torch.contiguous_format)
        cosine, sine = (angles.contiguous() for angles in position_embeddings)
        self.run(hidden[0], cosine[0], sine[0], treeline_step)
        return hidden

    def run(self, hidden: Tensor, cosine: Tensor, sine: Tensor, step: NativeStep) -> None:
        """All layers over `hidden` [rows, hidden], in place; `cosine`, `sine` [rows, head_dim].
        All contiguous."""
        rows = len(hidden)
        if len(self._scratch) < rows * self._columns:
            self._scratch = torch.empty(rows * self._columns, dtype=torch.bfloat16)
        data = step.kv.data
        if self._kernels.treeline_decode(
            self._native,
            len(self._native),
            step.native,
            hidden.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            data[self._first].data_ptr(),
            data.stride(0),
            data.stride(1),
            self._scratch.data_ptr(),
            rows,
            torch.get_num_threads(),
        ):
            raise MemoryError("no memory for the attention kernel's scratch space")


def fuse_decoders(model: nn.Module, kernels: ctypes.CDLL, shape: KvShape) -> int:
    """Replace each list of decoder layers that all have twins of the same bits; returns how many
    layers that are.

    Called last, after linear layers, norms and MLPs were replaced. `shape`: the model's KV.
    """
    fused = 0
    for parent in list(model.modules()):
        for name, layers in list(parent.named_children()):
            if isinstance(layers, nn.ModuleList) and all(can_fuse(one, shape) for one in layers):
                rules = [_rules_of_twin(layer, kernels, shape) for layer in layers]
                known = [rule for rule in rules if rule is not None]
                if known and len(known) == len(layers):
                    fused += len(layers)
                    setattr(
                        parent, name, nn.ModuleList([FusedDecoders(list(layers), known, kernels)])
                    )
    return fused


def can_fuse(layer: nn.Module, shape: KvShape) -> bool:
    """Whether a layer has the parts of a Llama layer, all of them computed by our kernels."""
    children = dict(layer.named_children())
    if set(children) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    heads = dict(children["self_attn"].named_children())
    mlp = dict(children["mlp"].named_children())
    norms = [children["input_layernorm"], children["post_attention_layernorm"]]
    norms += [heads.pop(name) for name in _HEAD_NORMS if name in heads]
    linears = [*heads.values(), *mlp.values()]
    return (
        set(heads) == set(_PROJECTIONS)
        and isinstance(children["mlp"], FusedGatedMlp)
        and all(isinstance(norm, FusedRmsNorm) for norm in norms)
        and all(isinstance(linear, NativeLinear) for linear in linears)
        and shape.head_dim % 2 == 0
    )


def _native(layer: nn.Module, rules: LayerRules) -> Decoder:
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    linears: dict[str, Any] = {
        name: attention.get_submodule(old) for old, name in _PROJECTIONS.items()
    }
    linears["gate_up"] = mlp.get_submodule("gate_up_proj")
    linears["down"] = mlp.get_submodule("down_proj")
    norms: dict[str, Any] = {
        "norm": layer.get_submodule("input_layernorm"),
        "mlp_norm": layer.get_submodule("post_attention_layernorm"),
    }
    for old, name in _HEAD_NORMS.items():
        if hasattr(attention, old):
            norms[name] = attention.get_submodule(old)
    return Decoder(
        **{name: linear.native for name, linear in linears.items()},
        **{name: norm.weight.data_ptr() for name, norm in norms.items()},
        eps=norms["norm"].eps,
        mlp_eps=norms["mlp_norm"].eps,
        head_eps=norms["query_norm"].eps if "query_norm" in norms else 0.0,
        scale=rules.scale,
        softcap=rules.softcap or 0.0,
        window=rules.window or 0,
    )


class _Listener(NativeStep):
    """Remembers how it was asked."""

    rules = LayerRules(1.0, None, None)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: LayerRules
    ) -> Tensor:
        """See AttentionStep.attend."""
        self.rules = rules
        return super().attend(layer, query, key, value, rules)


def _rules_of_twin(layer: nn.Module, kernels: ctypes.CDLL, shape: KvShape) -> LayerRules | None:
    """How a layer attends, if its twin gives the same bits; else None."""
    rules, *expected = _try(layer, layer, kernels, shape)
    _, *got = _try(layer, FusedDecoders([layer], [rules], kernels), kernels, shape)
    return rules if all(map(torch.equal, expected, got)) else None


@torch.inference_mode()
def _try(
    layer: nn.Module, run: nn.Module, kernels: ctypes.CDLL, shape: KvShape
) -> tuple[LayerRules, Tensor, Tensor]:
    """`layer`, or a twin of it to run instead, on a prefix and a tree: how it attends, its rows,
    and the KV that it wrote."""
    attention: Any = layer.get_submodule("self_attn")
    queries, keys = attention.q_proj, attention.k_proj
    tree = TokenTree.anchored(_TREE[0][0])
    for token, parent in list(zip(*_TREE, strict=True))[1:]:
        tree.add(parent, token)
    part = RunRequest(0, 0, [7] * _PREFIX, tree, Needs())
    small = KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, part.num_rows)
    kv = KvCache(small, 1, torch.bfloat16, torch.device("cpu"))
    kv.data.zero_()
    step = _Listener(kernels, kv, [part], queries.out_features // keys.out_features)
    generator = torch.Generator().manual_seed(0)

    def some(columns: int) -> Tensor:
        return torch.randn(1, part.num_rows, columns, generator=generator).to(torch.bfloat16)

    rows = run(
        some(queries.in_features),
        position_embeddings=(some(shape.head_dim), some(shape.head_dim)),
        treeline_step=step,
    )
    return step.rules, rows, kv.data
