"""Layers that cost many small operations, replaced by fused twins.

A twin replaces its original only after both gave the same numbers on random rows, so a model whose
layer of a familiar shape computes something else simply keeps its own.
"""

import ctypes
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class FusedRmsNorm(nn.Module):
    """weight * x / rms(x) in one pass over each row."""

    def __init__(self, norm: nn.Module, kernels: ctypes.CDLL) -> None:
        super().__init__()
        self.weight = norm.get_parameter("weight").detach().contiguous()
        self.eps = float(norm.variance_epsilon)  # type: ignore[arg-type]
        self._kernels = kernels

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., dim] -> [..., dim]."""
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        dim = hidden.shape[-1]
        self._kernels.treeline_norm(
            hidden.data_ptr(),
            self.weight.data_ptr(),
            output.data_ptr(),
            hidden.numel() // dim,
            dim,
            self.eps,
            int(hidden.dtype == torch.bfloat16),
            torch.get_num_threads(),
        )
        return output


class FusedGatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up as one product."""

    def __init__(self, mlp: nn.Module, kernels: ctypes.CDLL) -> None:
        super().__init__()
        gate, up = mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj")
        assert isinstance(gate, nn.Linear)
        assert isinstance(up, nn.Linear)
        self.gate_up_proj = nn.Linear(gate.in_features, 2 * gate.out_features, bias=False)
        self.gate_up_proj.weight = nn.Parameter(
            torch.cat((gate.weight.detach(), up.weight.detach())), requires_grad=False
        )
        self.down_proj = mlp.get_submodule("down_proj")
        self._dim = gate.out_features
        self._kernels = kernels

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        both = self.gate_up_proj(hidden)
        inner = torch.empty((*both.shape[:-1], self._dim), dtype=both.dtype)
        self._kernels.treeline_gate(
            both.data_ptr(),
            inner.data_ptr(),
            both.numel() // (2 * self._dim),
            self._dim,
            int(both.dtype == torch.bfloat16),
            torch.get_num_threads(),
        )
        output: Tensor = self.down_proj(inner)
        return output


def fuse_layers(model: nn.Module, kernels: ctypes.CDLL) -> int:
    """Replace what has a twin that agrees. Returns how many layers were replaced."""
    replaced = 0
    for parent, name, layer, build in list(_candidates(model)):
        twin = build(layer, kernels)
        if _agree(layer, twin):
            setattr(parent, name, twin)
            replaced += 1
    return replaced


Build = Callable[[nn.Module, ctypes.CDLL], nn.Module]


def _candidates(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module, Build]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                yield parent, name, child, FusedRmsNorm
            elif _is_gated_mlp(child):
                yield parent, name, child, FusedGatedMlp


def _is_gated_mlp(layer: nn.Module) -> bool:
    names = {name for name, _ in layer.named_children()}
    if not names >= {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    inputs = (layer.get_submodule("gate_proj"), layer.get_submodule("up_proj"))
    return all(type(linear) is nn.Linear and linear.bias is None for linear in inputs)


@torch.inference_mode()
def _agree(layer: nn.Module, twin: nn.Module) -> bool:
    weight = next(layer.parameters())
    dim = weight.shape[-1]
    rows = torch.randn(1, 5, dim, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    expected, got = layer(rows).float(), twin(rows).float()
    tolerance = _TOLERANCE[weight.dtype] * float(expected.abs().max().clamp(min=1e-3))
    return bool((expected - got).abs().max() <= tolerance)
