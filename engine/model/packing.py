"""Linear weights in the layout that the CPU's kernels want, reordered once instead of per call.

Packed kernels also give a row the same bits for every row count from eight on, which plain ones do
not: speculation and plain decoding then run the same arithmetic.
"""

import torch
from torch import Tensor, nn


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


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine has packed kernels for `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return dtype == torch.float32


def pack_linears(model: nn.Module) -> int:
    """Replace every plain linear layer inside `model`. Returns how many were replaced."""
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in places:
        setattr(parent, name, PackedLinear(linear))
    return len(places)
