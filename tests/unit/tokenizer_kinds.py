"""Small tokenizers of every kind that Treeline reads, built as the real ones are."""

from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

CORPUS = (
    "The meaning of life is leading the quick brown fox over the lazy dog.",
    "def add(x, y):\n    return x + y\n",
    "你是谁？ Это Ж 🙂 café €10, 12345 and 678.",
)
SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content + '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS = ("byte_level", "sentencepiece", "gemma", "metaspace")


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers of that kind, with BOS added by its post-processor."""
    backend = _byte_level() if kind == "byte_level" else _sentencepiece(kind)
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    bos = backend.token_to_id("<s>")
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def _byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_tokens([AddedToken("<tool call>", normalized=False, special=False)])
    return backend


def _sentencepiece(kind: str) -> Tokenizer:
    """BPE over `▁` words; characters unknown to it fall back to bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    ascii_only = [text.encode("ascii", "ignore").decode() for text in CORPUS]
    trained.train_from_iterator(
        ascii_only, trainers.BpeTrainer(vocab_size=150, show_progress=False)
    )
    learned = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    words = [word for word, _ in learned]
    merges = [(a, b) for word in words for a, b in _splits(word, set(words))]
    names = [*SPECIAL[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {name: index for index, name in enumerate(names)}
    backend = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    elif kind == "gemma":
        backend.normalizer = replace
        backend.decoder = decoders.Sequence(steps)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return backend


def _splits(word: str, words: set[str]) -> list[tuple[str, str]]:
    cuts = ((word[:cut], word[cut:]) for cut in range(1, len(word)))
    return [(left, right) for left, right in cuts if left in words and right in words][:1]
