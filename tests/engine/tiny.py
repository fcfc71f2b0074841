"""Tiny random models of every family that Treeline serves, and a bench to run an engine on them."""

import itertools
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
import transformers

from engine.config import AutoConfig, EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.core import EngineCore
from engine.model.attention import NAME
from engine.model.loader import LoadedModel
from engine.model.runner import ModelRunner
from engine.spec.bigrams import Bigrams
from engine.spec.drafter import Rows
from engine.spec.packed_rows import packer
from engine.types import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SamplingParams,
    SpeculationPlan,
    StepOutputs,
)

VOCAB = 384
MAX_LEN = 256
EOS = 7
_IDS = itertools.count()
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": MAX_LEN,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
_EXTRA = {
    "Llama": {},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "Qwen3": {},
    "Mistral": {"sliding_window": 20},
    "Gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 12},
    "Gemma3Text": {"sliding_window": 16, "query_pre_attn_scalar": 12},
    "Phi3": {"sliding_window": None},
}
FAMILIES = tuple(_EXTRA)


@cache
def tiny_model(family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """A random model whose next token depends strongly on its context, so that texts vary."""
    torch.manual_seed(11)
    config = getattr(transformers, f"{family}Config")(**_SIZES, **_EXTRA[family])
    name = family.removesuffix("Text")
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(
        config, attn_implementation=NAME
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.12)
    return model.eval().to(dtype)


def tiny_loaded(family: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """The model as the loader would hand it over."""
    model = tiny_model(family, dtype)
    return LoadedModel(
        model=model,
        folder=Path("tiny"),
        device=torch.device("cpu"),
        dtype=dtype,
        eos_token_ids=frozenset({EOS}),
        max_model_len=MAX_LEN,
        vocab_size=VOCAB,
        architecture=type(model).__name__,
        layer_windows=(None,) * 3,
    )


def make_core(family: str = "Llama", tokenizer=None, **changes) -> EngineCore:
    """A core on a tiny model that checks its books after every step."""
    speculation = changes.pop("speculation", SpeculationConfig())
    dtype = changes.pop("dtype", torch.float32)
    passes = changes.pop("passes", {})  # keywords of ModelRunner
    config = EngineConfig(
        model=ModelConfig("tiny", ModelSource(path=Path("tiny"))),
        speculation=speculation,
        check_invariants=True,
        **{"max_batch": 4, "prefill_chunk": 32} | changes,
    )
    loaded = tiny_loaded(family, dtype)
    runner = ModelRunner(loaded, config.max_batch, speculation.tree.budget, **passes)
    info = EngineInfo(
        "tiny", loaded.architecture, "cpu", str(dtype), VOCAB, MAX_LEN, config.max_batch, (EOS,)
    )
    return EngineCore(config, runner, info, tokenizer, bigrams=random_bigrams())


def random_bigrams() -> Bigrams:
    """Some successors of each token, for `auto`: where they come from is all the same to it."""
    generator = torch.Generator().manual_seed(5)
    width = AutoConfig().width
    logits = torch.randn(VOCAB, VOCAB, generator=generator).topk(width)
    return Bigrams(width, packer(width)(Rows(logits.indices.numpy(), logits.values.numpy())))


def plan(method: str, **wishes) -> SpeculationPlan:
    """A method's plan under the default bounds."""
    return SpeculationConfig().resolve(method, **wishes)


def request(
    prompt: Sequence[int], method: str | SpeculationPlan = "off", **sampling
) -> EngineRequest:
    """A request; greedy, 24 tokens and seed 1 unless said otherwise."""
    params = SamplingParams(**{"max_tokens": 24, "seed": 1, "temperature": 0.0} | sampling)
    speculation = method if isinstance(method, SpeculationPlan) else plan(method)
    return EngineRequest(f"r{next(_IDS)}", tuple(prompt), params, speculation, 0.0)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Random prompts with repeats in them, as text has."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        words = [rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 12))]
        made.append([rng.choice(words) for _ in range(rng.randint(1, longest))])
    return made


class Outcome:
    """Everything that an engine said about one request."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list = []
        self.outputs: list[EngineOutput] = []

    @property
    def end(self) -> EngineOutput:
        return self.outputs[-1]

    @property
    def reason(self) -> FinishReason | None:
        return self.end.finish_reason


def collect(into: dict[str, Outcome], outputs: StepOutputs) -> None:
    for output in outputs.outputs:
        outcome = into.setdefault(output.request_id, Outcome())
        assert outcome.outputs == [] or outcome.end.finish_reason is None, "output after the end"
        outcome.outputs.append(output)
        outcome.token_ids.extend(output.new_token_ids)
        outcome.logprobs.extend(output.logprobs or ())


def run(core: EngineCore, requests: Sequence[EngineRequest]) -> list[Outcome]:
    """Run requests together to their ends."""
    outcomes: dict[str, Outcome] = {}
    for item in requests:
        core.add(item)
    while core.has_work:
        collect(outcomes, core.step())
    core.check_invariants()
    return [outcomes[item.request_id] for item in requests]
