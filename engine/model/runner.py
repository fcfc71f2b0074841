"""One forward pass over the packed rows of many requests, and what is read of it.

All rows of all requests form one `[1, rows]` batch, so linear layers see one matrix product. Only
rows whose logits somebody reads reach the language-model head.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model import native_topk, topk
from engine.model.attention import AttentionStep
from engine.model.forward import forward
from engine.model.fused_decoder import fuse_decoders
from engine.model.fused_model import FusedModel, fuse_model
from engine.model.fusing import fuse_layers
from engine.model.gpu_start import GpuPasses, start_gpu
from engine.model.kv_cache import KvCache, KvShape
from engine.model.loader import LoadedModel
from engine.model.native import load_kernels
from engine.model.native_attention import MAX_HEAD_DIM, NativeStep
from engine.model.packed_pass import PackedPass
from engine.model.packing import LibraryLinear, pack_linears, stable_rows
from engine.model.row_blocks import ROW_BLOCK, block_linears
from engine.model.run_request import RunRequest, RunResult
from engine.model.sdpa_attention import SdpaStep
from engine.model.self_check import rows_keep_their_bits
from engine.spec.drafter import Rows

_BUCKET_STEPS = ((64, 4), (128, 8), (512, 32))  # up to so many rows: multiples of
_LARGEST_STEP = 64
_KERNEL_DTYPES = (torch.float32, torch.bfloat16)


def bucket(rows: int) -> int:
    """The next row count that is run: the library compiles, and keeps, kernels for each one."""
    step = next((step for limit, step in _BUCKET_STEPS if rows <= limit), _LARGEST_STEP)
    return -(-rows // step) * step


class ModelRunner:
    """Owns the model, the KV tensor and the one way to run them."""

    def __init__(
        self,
        loaded: LoadedModel,
        num_slots: int,
        max_tree_nodes: int,
        *,
        attention: str = "auto",
        cuda_graphs: str = "auto",
        exact: bool = False,
    ) -> None:
        """The keywords are keys of `model` in the configuration; `exact` is a wish, see `is_exact`.

        Raises ModelError, naming the key, if one of them demands what is not to be had here.
        """
        config = loaded.model.config.get_text_config()
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        capacity = loaded.max_model_len + max_tree_nodes + 1
        self._model = loaded.model
        self.device = loaded.device
        self.max_tree_nodes = max_tree_nodes
        self._group = heads // kv_heads
        shape = KvShape(config.num_hidden_layers, kv_heads, head_dim, capacity)
        is_cpu = loaded.device.type == "cpu"
        has_kernels = is_cpu and loaded.dtype in _KERNEL_DTYPES and head_dim <= MAX_HEAD_DIM
        self._kernels = load_kernels() if has_kernels else None
        self.kv = KvCache(shape, num_slots, loaded.dtype, loaded.device, self._kernels)
        if self._kernels is not None:
            fuse_layers(self._model, self._kernels)
        packed: list[LibraryLinear] = []
        least_rows: int | None = None
        if is_cpu and loaded.dtype in _KERNEL_DTYPES:
            packed = pack_linears(self._model, self._kernels)
            least_rows = stable_rows(packed, loaded.dtype) if packed else 1
        self._min_rows = least_rows or 1
        self._has_buckets = bool(packed)
        self._fused: FusedModel | None = None
        self._is_native = self._kernels is not None and attention == "auto"
        if self._is_native and self._kernels is not None:
            fuse_decoders(self._model, self._kernels, shape)
            if not packed:
                self._fused = fuse_model(self._model, self._kernels, shape, self._group)
        self._is_blocked = exact and not is_cpu
        self._gpu = GpuPasses()
        if self._is_blocked:
            block_linears(self._model)
        if not is_cpu or attention == "triton":
            most = max_tree_nodes + 1
            self._gpu = start_gpu(loaded.model, self.kv, most, attention, cuda_graphs, exact=exact)
        self.forward_seconds = 0.0  # of the last pass
        # Whether a row's bits depend on its own tokens only, whatever else is in the pass.
        self.is_exact = self._is_native and least_rows is not None
        if exact and self._gpu.attention is not None:
            self.is_exact = rows_keep_their_bits(self.run, self.kv, loaded.vocab_size)

    def _step(self, packed: PackedPass) -> AttentionStep:
        if self._gpu.attention is not None:
            return self._gpu.attention.step(packed, self._bucket(len(packed)))
        if self._is_native and self._kernels is not None:
            return NativeStep(self._kernels, self.kv, packed.parts, self._group)
        return SdpaStep(self.kv, packed.parts, self._group)

    def run(self, parts: Sequence[RunRequest]) -> list[RunResult | None]:
        """Compute all rows, write their KV into the slots' scratch rows, and read what is needed.

        Returns one result per part, None for a part whose logits nobody reads.
        """
        begin = time.perf_counter()
        top_k = max((part.needs.top_k for part in parts), default=0)
        if self._gpu.graphs is not None and self._gpu.graphs.fits(parts):
            harvest = self._gpu.graphs.run(PackedPass.of(parts), top_k)
            results = self._split(parts, harvest.logits, harvest.argmax, harvest.best)
            self.forward_seconds = time.perf_counter() - begin
            return results
        logits = self._forward(parts)
        if not len(logits):
            self.forward_seconds = time.perf_counter() - begin
            return [None] * len(parts)
        argmax, best = self._best(logits, top_k)
        results = self._split(parts, logits, argmax, best)
        self.forward_seconds = time.perf_counter() - begin
        return results

    def _best(self, logits: Tensor, k: int) -> tuple[list[int], Rows]:
        if self._kernels is not None:
            return native_topk.best_tokens(self._kernels, logits, k)
        argmax, ids, values = topk.best_tokens(logits, k)
        return argmax.tolist(), Rows(ids.cpu().numpy(), values.float().cpu().numpy())

    @property
    def passes(self) -> str:
        """How passes are run, in words: what their cost depends on."""
        attention = "native" if self._is_native else "triton" if self._gpu.attention else "sdpa"
        return attention + ", graphs" * bool(self._gpu.graphs) + ", exact" * self._is_blocked

    def free_memory(self) -> None:
        """Give the device back what torch keeps for later, so that it can be cut up anew."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

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
                    rows=best.part(middle, row),
                    prefix_rows=best.part(begin, middle) if part.needs.prompt_rows else None,
                    prefix_logits=logits[begin:middle] if part.wants_prefix_logits else None,
                )
            )
        return results

    def _bucket(self, rows: int) -> int:
        if self._is_blocked:
            return -(-rows // ROW_BLOCK) * ROW_BLOCK
        return max(self._min_rows, bucket(rows)) if self._has_buckets else rows

    def _forward(self, parts: Sequence[RunRequest]) -> Tensor:
        packed = PackedPass.of(parts)
        step = self._step(packed)
        if self._fused is not None and isinstance(step, NativeStep):
            return self._fused(packed, step)
        with torch.inference_mode():
            return forward(self._model, packed, step, self.device, self._bucket)
