"""The eager pass: tensors made for one packed pass, and the model called with them.

A CPU always runs this. A GPU runs it for passes larger than its recorded graphs, and as the yard
stick that these are held against.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.packed_pass import PackedPass


def forward(
    model: Any,
    packed: PackedPass,
    step: AttentionStep,
    device: torch.device,
    padded: Callable[[int], int] = lambda rows: rows,
) -> Tensor:
    """Logits [reads, vocab] of the rows that are read. `padded`: rows to run for so many rows."""
    padding = [0] * (padded(len(packed)) - len(packed))
    reads = list(packed.reads)
    if reads:
        reads.extend(reads[-1:] * (padded(len(reads)) - len(reads)))
    output = model(
        input_ids=torch.tensor([packed.token_ids + padding], device=device),
        position_ids=torch.tensor([packed.positions + padding], device=device),
        use_cache=False,
        logits_to_keep=torch.tensor(reads, dtype=torch.long, device=device),
        treeline_step=step,
    )
    logits: Tensor = output.logits[0, : len(packed.reads)]
    return logits
