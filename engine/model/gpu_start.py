"""Decides at start how passes run on a GPU, and has each fast way proved before it is used.

What the configuration leaves open falls back with a warning; what it demands is refused.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.model.forward import forward
from engine.model.kv_cache import KvCache
from engine.model.packed_pass import PackedPass
from engine.model.sdpa_attention import SdpaStep
from engine.model.self_check import RaggedBatch
from engine.model.step_graphs import EXACT_ROW_COUNTS, ROW_COUNTS, StepGraphs, cuda_recorder

if TYPE_CHECKING:  # importing it takes Triton
    from engine.model.triton_attention import TritonAttention

log = logging.getLogger("treeline.engine")


@dataclass(frozen=True, slots=True)
class GpuPasses:
    """The fast ways that have been proved; None: the plain way is taken instead."""

    attention: "TritonAttention | None" = None
    graphs: StepGraphs | None = None


@torch.inference_mode()
def start_gpu(
    model: Any, kv: KvCache, largest_tree: int, attention: str, cuda_graphs: str, *, exact: bool
) -> GpuPasses:
    """Kernels and graphs as the keys `model.attention` and `model.cuda_graphs` ask.

    Uses the first slots, which must be free. Raises ModelError, naming the key, if one of them
    demands what this device, these packages or this model do not give.
    """
    if attention == "sdpa":
        if cuda_graphs == "always":
            raise ModelError("model.cuda_graphs: always takes model.attention: triton or auto.")
        return GpuPasses()
    try:
        kernels = _proved_kernels(model, kv, largest_tree)
    except Exception as error:  # whatever a compiler, a driver or a missing package raises
        _fall_back("attention", "triton", attention == "triton", error)
        if cuda_graphs == "always":
            raise ModelError(f"model.cuda_graphs: always takes Triton: {_line(error)}.") from error
        return GpuPasses()
    if cuda_graphs == "never" or kv.data.device.type != "cuda":
        return GpuPasses(kernels)
    try:
        return GpuPasses(kernels, _proved_graphs(model, kernels, exact=exact))
    except Exception as error:  # whatever the model's code does that cannot be recorded
        _fall_back("cuda_graphs", "always", cuda_graphs == "always", error)
        return GpuPasses(kernels)


def _proved_kernels(model: Any, kv: KvCache, largest_tree: int) -> "TritonAttention":
    from engine.model.triton_attention import TritonAttention

    kernels = TritonAttention(kv, _group(model, kv), largest_tree)

    def run(packed: PackedPass) -> Tensor:
        return forward(model, packed, kernels.step(packed, len(packed)), kv.data.device)

    _prove(model, kernels, run)
    return kernels


def _proved_graphs(model: Any, kernels: "TritonAttention", *, exact: bool) -> StepGraphs:
    counts = EXACT_ROW_COUNTS if exact else ROW_COUNTS
    graphs = StepGraphs(model, kernels, cuda_recorder(), counts)
    _prove(model, kernels, lambda packed: graphs.run(packed, 0).logits)
    return graphs


def _prove(model: Any, kernels: "TritonAttention", run: Any) -> None:
    """Raises RuntimeError if `run` and a pass with torch's attention differ."""
    kv = kernels.kv

    def plain(packed: PackedPass) -> Tensor:
        step = SdpaStep(kv, packed.parts, _group(model, kv))
        return forward(model, packed, step, kv.data.device)

    vocab = int(model.get_output_embeddings().weight.shape[0])
    difference = RaggedBatch(plain, kv, vocab, kernels.split_len).difference(run)
    if difference is not None:
        raise RuntimeError(difference)


def _group(model: Any, kv: KvCache) -> int:
    """Query heads per KV head."""
    return int(model.config.get_text_config().num_attention_heads) // kv.shape.num_kv_heads


def _fall_back(key: str, value: str, is_demanded: bool, error: Exception) -> None:
    if is_demanded:
        raise ModelError(f"model.{key}: {value} cannot be used here: {_line(error)}.") from error
    log.warning("model.%s: going on without %s, which failed here: %s", key, value, _line(error))


def _line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {text}"
