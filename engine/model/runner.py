"""One forward pass over the packed rows of many requests, and what is read of it.

All rows of all requests form one `[1, rows]` batch, so linear layers see one matrix product. Only
rows whose logits somebody reads reach the language-model head.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model.attention import AttentionStep
from engine.model.fusing import fuse_layers
from engine.model.kv_cache import KvCache, KvShape
from engine.model.loader import LoadedModel
from engine.model.native import load_kernels
from engine.model.native_attention import MAX_HEAD_DIM, NativeStep
from engine.model.packing import can_pack, pack_linears, stable_rows
from engine.model.run_request import RunRequest, RunResult
from engine.model.sdpa_attention import SdpaStep
from engine.model.topk import best_tokens
from engine.spec.drafter import Rows

_BUCKET_STEPS = ((64, 4), (128, 8), (512, 32))  # up to so many rows: multiples of
_LARGEST_STEP = 64
_KERNEL_DTYPES = (torch.float32, torch.bfloat16)


def bucket(rows: int) -> int:
    """The next row count that is run: kernels are compiled, and kept, for each one that occurs."""
    step = next((step for limit, step in _BUCKET_STEPS if rows <= limit), _LARGEST_STEP)
    return -(-rows // step) * step


class ModelRunner:
    """Owns the model, the KV tensor and the one way to run them."""

    def __init__(self, loaded: LoadedModel, num_slots: int, max_tree_nodes: int) -> None:
        config = loaded.model.config.get_text_config()
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        capacity = loaded.max_model_len + max_tree_nodes + 1
        self._model = loaded.model
        self.device = loaded.device
        self._group = heads // kv_heads
        shape = KvShape(config.num_hidden_layers, kv_heads, head_dim, capacity)
        self.kv = KvCache(shape, num_slots, loaded.dtype, loaded.device)
        is_cpu = loaded.device.type == "cpu"
        has_kernels = is_cpu and loaded.dtype in _KERNEL_DTYPES and head_dim <= MAX_HEAD_DIM
        self._kernels = load_kernels() if has_kernels else None
        if self._kernels is not None:
            fuse_layers(self._model, self._kernels)
        least_rows: int | None = None
        if is_cpu and can_pack(loaded.dtype):
            least_rows = stable_rows(pack_linears(self._model), loaded.dtype)
        self._min_rows = least_rows or 1
        self._has_buckets = is_cpu and can_pack(loaded.dtype)
        # Whether a row's bits depend on its own tokens only, whatever else is in the pass.
        self.is_exact = self._kernels is not None and least_rows is not None
        self.forward_seconds = 0.0  # of the last pass

    def _step(self, parts: Sequence[RunRequest]) -> AttentionStep:
        if self._kernels is not None:
            return NativeStep(self._kernels, self.kv, parts, self._group)
        return SdpaStep(self.kv, parts, self._group)

    @torch.inference_mode()
    def run(self, parts: Sequence[RunRequest]) -> list[RunResult | None]:
        """Compute all rows, write their KV into the slots' scratch rows, and read what is needed.

        Returns one result per part, None for a part whose logits nobody reads.
        """
        begin = time.perf_counter()
        logits = self._forward(parts)
        if not len(logits):
            self.forward_seconds = time.perf_counter() - begin
            return [None] * len(parts)
        top_k = max((part.needs.top_k for part in parts), default=0)
        argmax, ids, values = best_tokens(logits, top_k)
        best = Rows(ids.cpu().numpy(), values.float().cpu().numpy())
        results = self._split(parts, logits, argmax.tolist(), best)
        self.forward_seconds = time.perf_counter() - begin
        return results

    def _split(
        self, parts: Sequence[RunRequest], logits: Tensor, argmax: list[int], best: Rows
    ) -> list[RunResult | None]:
        results: list[RunResult | None] = []
        row = 0
        for part in parts:
            begin, row = row, row + len(part.rows_read)
            if begin == row:
                results.append(None)
                continue
            num_prefix = row - begin - (len(part.tree) if part.tree else 0)
            middle = begin + num_prefix
            results.append(
                RunResult(
                    logits=logits[middle:row],
                    argmax=argmax[middle:row],
                    rows=best[middle:row],
                    prefix_rows=best[begin:middle] if part.needs.prompt_rows else None,
                    prefix_logits=logits[begin:middle] if part.wants_prefix_logits else None,
                )
            )
        return results

    def _bucket(self, rows: int) -> int:
        return max(self._min_rows, bucket(rows)) if self._has_buckets else rows

    def _forward(self, parts: Sequence[RunRequest]) -> Tensor:
        token_ids: list[int] = []
        positions: list[int] = []
        reads: list[int] = []
        for part in parts:
            start = len(token_ids)
            reads.extend(start + row for row in part.rows_read)
            token_ids.extend(part.prefix)
            positions.extend(range(part.committed_len, part.committed_len + len(part.prefix)))
            if part.tree:
                token_ids.extend(part.tree.token_ids)
                anchor = part.committed_len + len(part.prefix)
                positions.extend(anchor + depth for depth in part.tree.depths)
        padding = self._bucket(len(token_ids)) - len(token_ids)
        token_ids.extend([0] * padding)
        positions.extend([0] * padding)
        num_reads = len(reads)
        if reads:
            reads.extend(reads[-1:] * (self._bucket(num_reads) - num_reads))
        output = self._model(
            input_ids=torch.tensor([token_ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(reads, dtype=torch.long, device=self.device),
            treeline_step=self._step(parts),
        )
        logits: Tensor = output.logits[0, :num_reads]
        return logits
