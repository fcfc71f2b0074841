"""From a configuration to a core that can step: everything that is slow and happens once."""

import time

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ModelError
from engine.memory import give_back
from engine.model.attention import NAME
from engine.model.bigram_probe import probe_bigrams
from engine.model.cost_probe import probe_step_cost
from engine.model.loader import load_model
from engine.model.runner import ModelRunner
from engine.model.source import resolve_source
from engine.text.tokenizer import Tokenizer
from engine.types import EngineInfo


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The model's tokenizer. Raises ModelError."""
    folder = resolve_source(config.model.source)
    return Tokenizer.load(folder, trust_remote_code=config.model.trust_remote_code)


def build_core(config: EngineConfig, tokenizer: Tokenizer) -> tuple[EngineCore, EngineInfo]:
    """Load the model and probe it. Runs on the thread that will step. Raises ModelError."""
    loaded = load_model(config.model, attn_implementation=NAME)
    runner = ModelRunner(
        loaded,
        config.max_batch,
        config.speculation.tree.budget,
        attention=config.model.attention,
        cuda_graphs=config.model.cuda_graphs,
        exact=config.model.exact,
    )
    if config.model.exact and not runner.is_exact:
        raise ModelError(
            f"model.exact: {loaded.dtype} on {loaded.device} gives rows bits that depend on their "
            "company here (on a CPU it takes a C compiler with OpenMP: cc, gcc or clang; on a GPU "
            "Triton, and matrix kernels that keep to their order)."
        )
    info = EngineInfo(
        model_name=config.model.name,
        architecture=loaded.architecture,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.max_model_len,
        max_batch=config.max_batch,
        eos_token_ids=tuple(sorted(loaded.eos_token_ids)),
        is_exact=runner.is_exact,
        created=int(time.time()),
    )
    auto = config.speculation.auto
    cost = None
    if auto.cost_slope is None:
        cost = probe_step_cost(runner, config.model.name, auto.width)
    give_back()
    line_break = tokenizer.encode("\n")
    bigrams = probe_bigrams(runner, info, line_break, auto.width, auto.bigram_seconds)
    return EngineCore(config, runner, info, tokenizer, cost, bigrams), info
