"""Loads the target model once, as the numbers and on the device that fit the machine.

Everything that would later end in wrong text or a crash on the engine's thread is found here and
refused in one line: missing weights, unsuitable attention, end tokens outside the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from engine.config import ModelConfig
from engine.errors import ModelError
from engine.model.native import has_bf16_linears
from engine.model.source import resolve_source
from engine.model.support import check_class, check_config, layer_windows

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_LONG = 4 << 30  # bytes of weights from which on loading them takes long enough for a progress bar
_BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, Arm


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model of transformers, ready for inference."""

    model: Any  # PreTrainedModel, in eval mode, parameters frozen
    folder: Path
    device: torch.device
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    max_model_len: int
    vocab_size: int  # width of the logits; the tokenizer may know fewer tokens
    architecture: str
    layer_windows: tuple[int | None, ...]  # sliding window of each layer, in tokens


def load_model(config: ModelConfig, attn_implementation: str) -> LoadedModel:
    """Load and check the model of `config`.

    `attn_implementation`: a name registered with transformers' AttentionInterface.
    Raises ModelError, naming the model and the reason, if it cannot be loaded or served.
    """
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    folder = resolve_source(config.source)
    model_config = _read_config(folder, config.trust_remote_code)
    max_model_len = _context(model_config, config.max_model_len)
    model = _read_weights(folder, dtype, config.trust_remote_code)
    check_class(type(model))
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    eos_token_ids = frozenset(_eos_ids(model))
    strangers = sorted(id_ for id_ in eos_token_ids if not 0 <= id_ < vocab_size)
    if strangers:
        raise ModelError(
            f"The model's end tokens {strangers} lie outside its vocabulary of {vocab_size} tokens."
        )
    model.eval().requires_grad_(False).to(device)
    windows = layer_windows(model)
    model.set_attn_implementation(attn_implementation)
    return LoadedModel(
        model=model,
        folder=folder,
        device=device,
        dtype=dtype,
        eos_token_ids=eos_token_ids,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        architecture=type(model).__name__,
        layer_windows=windows,
    )


def pick_device(wish: str) -> torch.device:
    """`auto`: the GPU if there is one. Raises ModelError for a device that is not there."""
    if wish not in ("auto", "cpu", "cuda"):
        raise ModelError(f"Unknown device {wish!r}; known: auto, cpu, cuda.")
    has_cuda = torch.cuda.is_available()
    if wish == "cuda" and not has_cuda:
        raise ModelError("The device cuda is not available on this machine.")
    return torch.device("cuda" if has_cuda and wish != "cpu" else "cpu")


def pick_dtype(wish: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the hardware or our kernels compute in it, else float32.

    Raises ModelError for a dtype that is not known.
    """
    if wish == "auto":
        return torch.bfloat16 if _has_bf16(device) else torch.float32
    if wish not in _DTYPES:
        raise ModelError(f"Unknown dtype {wish!r}; known: auto, {', '.join(_DTYPES)}.")
    return _DTYPES[wish]


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if has_bf16_linears():
        return True
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:  # not Linux
        return False
    return not _BF16_CPU_FLAGS.isdisjoint(words)


def _read_config(folder: Path, trust_remote_code: bool) -> Any:
    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # transformers documents no set of exceptions
        raise ModelError(f"The model in {folder} cannot be loaded: {_line(error)}") from error
    check_config(config)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        check_class(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    return config


def _read_weights(folder: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    if sum(file.stat().st_size for file in folder.glob("*.safetensors")) < _LONG:
        disable_progress_bar()  # a bar that is gone at once is only noise
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers documents no set of exceptions
        raise ModelError(f"The model in {folder} cannot be loaded: {_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would serve random numbers in their place
        raise ModelError(
            f"The weights in {folder} lack {len(missing)} tensors, {missing[0]!r} among them."
        )
    return model


def _context(config: Any, wish: int | None) -> int:
    """The longest context to serve: what is asked for, within what the model knows."""
    # Beyond its original length longrope rescales all positions, those in the KV cache and those of
    # neighbours in a batch too, so a text would depend on its neighbours.
    limits = [getattr(config, "max_position_embeddings", None)] + [
        rope.get("original_max_position_embeddings")
        for rope in _rope_rules(config)
        if rope.get("rope_type") == "longrope"
    ]
    known = min((limit for limit in limits if limit), default=None)
    if wish is None:
        if known is None:
            raise ModelError("The model names no context length: set max_model_len.")
        return int(known)
    if wish < 2:
        raise ModelError(f"max_model_len must be at least 2, got {wish}.")
    if known is not None and wish > known:
        raise ModelError(f"max_model_len {wish} exceeds the model's context of {known} tokens.")
    return wish


def _rope_rules(config: Any) -> Iterator[dict[str, Any]]:
    """The model's rotary settings: one set, or one for each kind of layer."""
    rules = getattr(config, "rope_parameters", None) or {}
    yield rules
    yield from (rule for rule in rules.values() if isinstance(rule, dict))


def _eos_ids(model: Any) -> Iterator[int]:
    for source in (model.generation_config, model.config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            yield from [ids] if isinstance(ids, int) else ids


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
