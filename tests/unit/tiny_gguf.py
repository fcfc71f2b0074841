"""Writes a GGUF file of a tiny random Llama, with a tokenizer learned from a few lines."""

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, CONTEXT = 1, 32, 4, 2, 64, 64
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def write_tiny_gguf(path: Path, pre: str | None = "smollm", **ids: int) -> None:
    """`ids`: special token ids by GGUF's names, besides eos=2."""
    tokens, merges = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(1)
    for name, id_ in ({"eos": 2} | ids).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id_)
    writer.add_chat_template(TEMPLATE)
    for name, shape in _tensors(len(tokens)).items():
        _add_tensor(writer, name, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a tensor, before any quantisation."""
    rng = np.random.default_rng(list(name.encode()))
    return rng.normal(0, 0.2, shape).astype(np.float32)


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> None:
    values = tensor(name, shape)
    if name.endswith("ffn_up.weight"):
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)


def _tensors(vocab: int) -> dict[str, tuple[int, ...]]:
    kv_width = WIDTH // HEADS * KV_HEADS
    return {
        "token_embd.weight": (vocab, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (vocab, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (kv_width, WIDTH),
        "blk.0.attn_v.weight": (kv_width, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (INNER, WIDTH),
        "blk.0.ffn_up.weight": (INNER, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
    }


def _vocabulary() -> tuple[list[str], list[str]]:
    """(tokens by id, merges): longer numbers are learned too, so a wrong split shows."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(CONTROL),
        show_progress=False,
    )
    backend.train_from_iterator(["x = 12345   7  8", "    indented 12345"] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return tokens, [" ".join(pair) for pair in model["merges"]]
