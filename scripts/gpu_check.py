"""Prove the engine on a GPU in a few minutes: lossless, what a step costs, what speculation gains.

    python scripts/gpu_check.py --json gpu.json --plot gpu.png
    python scripts/gpu_check.py --shape tiny --device cpu      # a dry run anywhere

It builds a random model of the asked shape. Random text soon repeats itself, so the gain shown is
that of the engine on easy text; what it proves is equality and the cost curve.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.core import EngineCore
from engine.model.attention import NAME
from engine.model.loader import LoadedModel
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from engine.types import EngineInfo, EngineRequest, SamplingParams, SpecStats

SHAPES = {  # hidden, intermediate, layers, heads, KV heads, vocabulary
    "tiny": (256, 512, 4, 4, 2, 4096),
    "1b": (2048, 8192, 16, 32, 8, 128256),
    "8b": (4096, 14336, 32, 32, 8, 128256),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
CONTEXT = 2048
METHODS = ("off", "goose", "ptd", "auto")


def random_model(shape: str, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """A Llama of the asked shape with random weights, built on the device."""
    hidden, intermediate, layers, heads, kv_heads, vocab = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config, attn_implementation=NAME, dtype=dtype).eval()
    model.requires_grad_(False)
    name = type(model).__name__
    none = (None,) * layers
    return LoadedModel(model, Path(shape), device, dtype, frozenset(), CONTEXT, vocab, name, none)


def build(loaded: LoadedModel) -> EngineCore:
    """A core around the model."""
    config = EngineConfig(
        ModelConfig("gpu-check", ModelSource(path=loaded.folder)),
        SpeculationConfig(),
        max_batch=4,
        prefix_reuse=False,
    )
    runner = ModelRunner(loaded, config.max_batch, config.speculation.tree.budget)
    info = EngineInfo(
        "gpu-check",
        loaded.architecture,
        str(loaded.device),
        str(loaded.dtype),
        loaded.vocab_size,
        CONTEXT,
        config.max_batch,
        (),
    )
    return EngineCore(config, runner, info, None)


def decode(core: EngineCore, method: str, prompts: list[list[int]], tokens: int, tag: str):
    """(token lists, counters, seconds) of prompts decoded one after the other."""
    texts, stats = [], SpecStats()
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, seed=1, temperature=0.0)
        plan = SpeculationConfig().resolve(method)
        core.add(EngineRequest(f"{tag}{method}{number}", tuple(prompt), params, plan, 0.0))
        text: list[int] = []
        while core.has_work:
            for output in core.step().outputs:
                text += output.new_token_ids
                stats += output.stats or SpecStats()
        texts.append(text)
    return texts, stats, time.perf_counter() - begin


def step_costs(runner: ModelRunner, vocab: int) -> dict[int, float]:
    """Median seconds of a step by rows, at a context of 512 tokens."""
    prompt = [i % vocab for i in range(512)]
    runner.run([RunRequest(0, 0, prompt, None, Needs())])
    costs = {}
    for rows in ROWS:
        tree = TokenTree.anchored(1)
        for node in range(rows - 1):
            tree.add(node // 2, (node * 7 + 3) % vocab)
        part = RunRequest(0, 512, (), tree, Needs(top_k=10))
        times = []
        for _ in range(12):
            begin = time.perf_counter()
            runner.run([part])  # reads results back, so it waits for the device
            times.append(time.perf_counter() - begin)
        costs[rows] = statistics.median(times[2:])
    return costs


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a large copy reads on this device."""
    block = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        target.copy_(block)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 2 * block.numel() / min(times)


def main() -> int:
    """Run all checks; the exit code says whether fp32 was lossless."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "gpu_check: no CUDA device here; --shape tiny --device cpu is a dry run\n")
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 4096, (48,), generator=generator).tolist() for _ in range(4)]
    report: dict[str, object] = {"device": str(device), "shape": options.shape}
    with tqdm(total=3, file=sys.stderr) as progress:
        core = build(random_model("tiny", device, torch.float32))
        plain = decode(core, "off", prompts, 64, "fp32")[0]
        report["fp32_identical"] = {
            method: decode(core, method, prompts, 64, "fp32")[0] == plain for method in METHODS
        }
        progress.update()
        loaded = random_model(options.shape, device, torch.bfloat16)
        core = build(loaded)
        costs = step_costs(core._runner, loaded.vocab_size)
        weights = sum(p.numel() * p.element_size() for p in loaded.model.parameters())
        report["step_seconds"] = costs
        report["bandwidth_bound_seconds"] = weights / bandwidth(device)
        progress.update()
        rows = []
        baseline = 0.0
        for method in METHODS:
            _, stats, seconds = decode(core, method, prompts, options.tokens, "bf16")
            speed = stats.tokens / seconds
            baseline = baseline or speed
            rows.append(
                {
                    "method": method,
                    "tau": stats.tau,
                    "tokens_per_second": speed,
                    "speedup": speed / baseline,
                }
            )
        report["methods"] = rows
        progress.update()
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        plot(costs, float(weights / bandwidth(device)), options.plot)
    return 0 if all(report["fp32_identical"].values()) else 1  # type: ignore[attr-defined]


def plot(costs: dict[int, float], bound: float, path: Path) -> None:
    """Step time by rows beside the time that reading the weights once takes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.plot(list(costs), [1e3 * seconds for seconds in costs.values()], marker="o", label="step")
    axes.axhline(1e3 * bound, linestyle="--", label="weights read once")
    axes.set_xlabel("rows in the step")
    axes.set_ylabel("ms")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(main())
