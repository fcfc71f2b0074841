"""Whole steps recorded as CUDA graphs: a small pass then costs its memory reads, not its launches.

A step of a small model is a thousand kernels of a few microseconds, and Python launches them more
slowly than a GPU runs them. A recorded step is one launch: model, attention and the best tokens.
Around it stand one copy to the device and one back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.model.packed_pass import PackedPass
from engine.model.pass_tensors import PassLimits
from engine.model.run_request import RunRequest
from engine.model.topk import best_tokens
from engine.spec.drafter import Rows

if TYPE_CHECKING:  # importing it takes Triton
    from engine.model.triton_attention import TritonAttention

ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
EXACT_ROW_COUNTS = (64, 128, 192, 256)  # multiples of row_blocks.ROW_BLOCK
_BEST = 16  # tokens per row that a recorded step finds; more are looked for behind it

Compute = Callable[[], tuple[Tensor, Tensor]]
Record = Callable[[Compute], Compute]


@dataclass(frozen=True, slots=True)
class Harvest:
    """What the rows that are read gave. `logits` [reads, vocab] are gone after the next step."""

    logits: Tensor
    argmax: list[int]  # the logits' width where a row holds NaN
    best: Rows


class StaticStep:
    """A step over tensors with fixed addresses, for passes of up to `rows` rows."""

    def __init__(self, model: Any, attention: "TritonAttention", rows: int) -> None:
        self._model = model
        slots = attention.kv.data.shape[2]
        limits = PassLimits.for_any(rows, slots, attention.rows_per_unit)
        self.tensors = attention.tensors(limits)
        self._step = attention.over(self.tensors)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Logits [rows, vocab], and argmax, ids and values of the best tokens as one tensor.

        Reads nothing on the host. The second is int32 [rows, 1 + 2 * tokens]; values are the bits
        of float32.
        """
        output = self._model(
            input_ids=self.tensors.token_ids[None],
            position_ids=self.tensors.positions[None],
            use_cache=False,
            logits_to_keep=self.tensors.reads,
            treeline_step=self._step,
        )
        logits: Tensor = output.logits[0]
        argmax, ids, values = best_tokens(logits, _BEST)
        bits = values.float().view(torch.int32)
        return logits, torch.cat((argmax[:, None].int(), ids.int(), bits), 1)


class StepGraphs:
    """One recorded step for each of a few row counts; a pass runs in the next larger one."""

    def __init__(
        self,
        model: Any,
        attention: "TritonAttention",
        record: Record,
        row_counts: Sequence[int] = ROW_COUNTS,
    ) -> None:
        self._steps: dict[int, tuple[StaticStep, Compute]] = {}
        self._pinned = attention.kv.data.is_cuda
        for rows in sorted(row_counts, reverse=True):  # later ones fit into the first one's memory
            step = StaticStep(model, attention, rows)
            self._steps[rows] = (step, record(step.compute))
        self._row_counts = sorted(self._steps)

    def fits(self, parts: Sequence[RunRequest]) -> bool:
        """Whether these parts can be run here: not too large, and something is read of them."""
        rows = sum(part.num_rows for part in parts)
        return rows <= self._row_counts[-1] and any(part.rows_read for part in parts)

    def run(self, packed: PackedPass, top_k: int) -> Harvest:
        """Run one pass that `fits`, and wait for it."""
        count = next(rows for rows in self._row_counts if rows >= len(packed))
        step, replay = self._steps[count]
        step.tensors.write(packed)
        logits, found = replay()
        logits, found = logits[: len(packed.reads)], found[: len(packed.reads)]
        # Copying to the host waits for the step, so the host may write the next one after it.
        host = torch.empty(found.shape, dtype=torch.int32, pin_memory=self._pinned).copy_(found)
        known = (host.shape[1] - 1) // 2
        ids, values = host[:, 1 : known + 1], host[:, known + 1 :].view(torch.float32)
        if known < min(top_k, logits.shape[1]):
            _, ids, values = best_tokens(logits, top_k)
        best = Rows(ids[:, :top_k].long().cpu().numpy(), values[:, :top_k].float().cpu().numpy())
        return Harvest(logits, host[:, 0].tolist(), best)


def cuda_recorder() -> Record:
    """What records a step as a CUDA graph. All of one recorder's graphs share their memory."""
    pool = torch.cuda.graph_pool_handle()

    def record(compute: Compute) -> Compute:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # compiles kernels and makes the libraries' workspaces
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = compute()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return outputs

        return replay

    return record
