"""Linear weights in the layout that the CPU's kernels want, reordered once instead of per call.

Packed kernels also give a row the same bits for every row count from eight on, which plain ones do
not: speculation and plain decoding then run the same arithmetic.
"""

import ctypes
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from engine.model.native_linear import NativeLinear

_PROBED_ROWS = (4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 48, 61)
_WIDE = 16384  # outputs from which on a layer is a language-model head, too dear to try often


class PackedLinear(nn.Module):
    """A frozen linear layer over a weight that oneDNN has reordered."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._weight, self._bias, "none", [], ""
        )
        return output


LibraryLinear: TypeAlias = PackedLinear | nn.Linear


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine has packed kernels for `dtype`."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return dtype == torch.float32


def pack_linears(model: nn.Module, kernels: ctypes.CDLL | None) -> list[LibraryLinear]:
    """Replace every plain linear layer inside `model` by our own kernel where there is one, else by
    a packed one where this machine has that.

    Returns the layers that the library computes, whose rows may depend on their number.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in places:
        if kernels is not None and NativeLinear.can_run(linear, kernels):
            setattr(parent, name, NativeLinear(linear, kernels))
        elif can_pack(linear.weight.dtype):
            setattr(parent, name, PackedLinear(linear))
    return [module for module in model.modules() if isinstance(module, PackedLinear | nn.Linear)]


@torch.inference_mode()
def stable_rows(layers: Iterable[LibraryLinear], dtype: torch.dtype) -> int | None:
    """From how many rows on a row's bits do not depend on the row count; None: they always do.

    Found by trying each layer shape on this machine: kernels are chosen by shape and processor, and
    a library upgrade may choose others. One row in ten may differ where a kernel differs, so many
    rows are tried at every place. Never below four, which is free and where kernels change most.
    """
    shapes = {(layer.in_features, layer.out_features): layer for layer in layers}
    least = 4
    for layer in shapes.values():
        generator = torch.Generator().manual_seed(layer.in_features)
        num_rows = 384 if layer.out_features < _WIDE else 96
        rows = torch.randn(1, num_rows, layer.in_features, generator=generator).to(dtype)
        whole = layer(rows)
        for count in _PROBED_ROWS:
            if not _agrees(layer, rows, whole, count):
                least = max(least, count + 1)
    return least if least <= 16 else None


def _agrees(layer: LibraryLinear, rows: Tensor, whole: Tensor, count: int) -> bool:
    """Whether `count` rows at a time, at any place, give the bits that all rows at once give."""
    starts = range(0, rows.shape[1] - count + 1, count)
    return all(
        torch.equal(layer(rows[:, start : start + count]), whole[:, start : start + count])
        for start in starts
    )
