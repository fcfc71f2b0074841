"""Linear layers by our own kernel: each bf16 weight is read once, and rows never meet.

The library's kernels leave half of a memory's bandwidth unused for the few rows of a decoding step,
and choose their arithmetic by the number of rows (native/linear.inc.c).
"""

import ctypes

import torch
from torch import Tensor, nn

from engine.model.native import Linear


class NativeLinear(nn.Module):
    """A frozen bf16 linear layer over a weight in panels of outputs."""

    def __init__(self, linear: nn.Linear, kernels: ctypes.CDLL) -> None:
        """`linear` must satisfy `can_run`."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._kernels = kernels
        self._bias = None if linear.bias is None else linear.bias.detach().contiguous()
        weight = linear.weight.detach().contiguous()
        panel = kernels.treeline_linear_panel()
        num_panels = -(-self.out_features // panel)
        self._packed = torch.empty(num_panels * panel * self.in_features, dtype=torch.bfloat16)
        kernels.treeline_pack_linear(
            weight.data_ptr(), self._packed.data_ptr(), self.in_features, self.out_features
        )
        self.native = Linear(
            weight=self._packed.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
        )

    @staticmethod
    def can_run(linear: nn.Linear, kernels: ctypes.CDLL) -> bool:
        """Whether this machine has the kernel, and the kernel fits the layer."""
        is_bf16 = linear.weight.dtype == torch.bfloat16
        return is_bf16 and linear.in_features % 2 == 0 and bool(kernels.treeline_linear_panel())

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        hidden = hidden.contiguous()
        output = hidden.new_empty((*hidden.shape[:-1], self.out_features))
        self._kernels.treeline_linear(
            self.native,
            hidden.data_ptr(),
            output.data_ptr(),
            hidden.numel() // self.in_features,
            torch.get_num_threads(),
        )
        return output
