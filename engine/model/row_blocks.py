"""Linear layers that always run the same number of rows, for `model.exact` on a GPU.

The libraries of a GPU choose a matrix kernel, and with it an order of additions, by the number of
rows. Called with one number only, they always choose the same, and a row's bits do not depend on
how many rows there are. More rows take several calls, so long prompts pay for it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW_BLOCK = 64


class BlockedLinear(nn.Module):
    """A frozen linear layer that runs ROW_BLOCK rows at a time, zeros where there are fewer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight  # tied ones stay tied
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        rows = hidden.reshape(-1, self.in_features)
        missing = -len(rows) % ROW_BLOCK
        blocks = F.pad(rows, (0, 0, 0, missing)).view(-1, ROW_BLOCK, self.in_features)
        results = [F.linear(block, self.weight, self.bias) for block in blocks]
        output = torch.cat(results) if results else rows.new_empty((0, self.out_features))
        return output[: len(rows)].view(*hidden.shape[:-1], self.out_features)


def block_linears(model: nn.Module) -> None:
    """Replace every plain linear layer inside `model`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, BlockedLinear(child))
