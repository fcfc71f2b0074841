"""Prove the engine on a GPU in five minutes: lossless, what a step costs, what drafting gains.

    python scripts/gpu_check.py --json gpu.json --plot gpu.png
    python scripts/gpu_check.py --model /models/Qwen3-8B --json gpu.json --plot gpu.png
    python scripts/gpu_check.py --shape tiny --device cpu      # a dry run anywhere

Losslessness is proved on small random models, in float32 and in exact bfloat16, token by token. A
step's cost is measured on the model given, or on a random one of the asked shape, beside the time
that reading its weights and keys takes at the bandwidth of a copy on this device. Random text soon
repeats itself, so only with a real model does the gain say anything of real text.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.bench.prompts import read_prompts
from engine.config import EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from engine.core import EngineCore
from engine.errors import TreelineError
from engine.model.attention import NAME
from engine.model.loader import LoadedModel, load_model
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from engine.text.tokenizer import Tokenizer
from engine.types import EngineInfo, EngineRequest, SamplingParams, SpecStats

SHAPES = {  # hidden, intermediate, layers, heads, KV heads, vocabulary
    "tiny": (256, 512, 4, 4, 2, 4096),
    "1b": (2048, 8192, 16, 32, 8, 128256),
    "8b": (4096, 14336, 32, 32, 8, 128256),
}
WAYS = {  # of running a pass on a GPU: keywords of ModelRunner
    "graphs": {"attention": "triton", "cuda_graphs": "always"},
    "triton": {"attention": "triton", "cuda_graphs": "never"},
    "sdpa": {"attention": "sdpa", "cuda_graphs": "never"},
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
CONTEXT = 2048  # tokens of a sequence
FILLED = 1024  # tokens before the measured steps
METHODS = ("off", "goose", "ptd", "auto")
PROMPTS = sorted((Path(__file__).parent / "prompts").glob("*.jsonl"))


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


def real_model(folder: Path, device: torch.device) -> LoadedModel:
    """The model of a local folder in bfloat16. Raises ModelError."""
    source = ModelSource(path=folder)
    config = ModelConfig("gpu-check", source, dtype="bfloat16", device=device.type)
    loaded = load_model(config, attn_implementation=NAME)
    return replace(loaded, max_model_len=min(CONTEXT, loaded.max_model_len))


def build(loaded: LoadedModel, **ways: object) -> EngineCore:
    """A core around the model, whose passes run in the given way."""
    config = EngineConfig(
        ModelConfig("gpu-check", ModelSource(path=loaded.folder)), max_batch=4, prefix_reuse=False
    )
    budget = config.speculation.tree.budget
    runner = ModelRunner(loaded, config.max_batch, budget, **ways)  # type: ignore[arg-type]
    info = EngineInfo(
        "gpu-check",
        loaded.architecture,
        str(loaded.device),
        str(loaded.dtype),
        loaded.vocab_size,
        loaded.max_model_len,
        config.max_batch,
        (),
    )
    return EngineCore(config, runner, info, None)


def decode(
    core: EngineCore, method: str, prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[list[list[int]], SpecStats, float]:
    """(token lists, counters, seconds) of prompts decoded one after the other."""
    texts, stats = [], SpecStats()
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, seed=1, temperature=0.0)
        plan = SpeculationConfig().resolve(method)
        core.add(EngineRequest(f"{method}{number}", tuple(prompt), params, plan, 0.0))
        text: list[int] = []
        while core.has_work:
            for output in core.step().outputs:
                text += output.new_token_ids
                stats += output.stats or SpecStats()
        texts.append(text)
    return texts, stats, time.perf_counter() - begin


def losslessness(device: torch.device) -> dict[str, dict[str, bool]]:
    """By number format: whether each method gave plain decoding's tokens."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 4096, (48,), generator=generator).tolist() for _ in range(4)]
    found = {}
    for name, dtype, exact in (
        ("float32", torch.float32, False),
        ("exact bfloat16", torch.bfloat16, True),
    ):
        core = build(random_model("tiny", device, dtype), exact=exact)
        plain = decode(core, "off", prompts, 64)[0]
        same = {m: decode(core, m, prompts, 64)[0] == plain for m in METHODS[1:]}
        found[name] = same | ({"the probe at start": core._runner.is_exact} if exact else {})
    return found


def step_costs(runner: ModelRunner, vocab: int) -> dict[int, float]:
    """Median seconds of a step by rows, behind FILLED tokens."""
    prompt = [i % vocab for i in range(FILLED)]
    runner.run([RunRequest(0, 0, prompt, None, Needs())])
    costs = {}
    for rows in ROWS:
        tree = TokenTree.anchored(1)
        for node in range(rows - 1):
            tree.add(node // 2, (node * 7 + 3) % vocab)
        part = RunRequest(0, FILLED, (), tree, Needs(top_k=10))
        times = []
        for _ in range(12):
            runner.run([part])
            times.append(runner.forward_seconds)  # it reads results, so it waited for the device
        costs[rows] = statistics.median(times[2:])
    return costs


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of copying a large tensor; the best of a few."""
    block = torch.zeros(1 << 30 if device.type == "cuda" else 1 << 27, dtype=torch.uint8).to(device)
    target = torch.empty_like(block)
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        target.copy_(block)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 2 * block.numel() / min(times)


def weight_bytes(model: PreTrainedModel) -> int:
    """What any step must read of the weights: all but a table of embeddings."""
    size: int = sum(p.numel() * p.element_size() for p in model.parameters())
    table = model.get_input_embeddings().weight
    if table is not model.get_output_embeddings().weight:
        size -= table.numel() * table.element_size()
    return size


def kv_bytes(runner: ModelRunner) -> int:
    """What any step must read of the keys and values of FILLED tokens."""
    shape = runner.kv.shape
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return FILLED * per_token * runner.kv.data.element_size()


def texts_to_decode(loaded: LoadedModel, is_real: bool) -> list[list[int]]:
    """A few prompts: of the bench's own suites for a real model, else random tokens."""
    if is_real:
        tokenizer = Tokenizer.load(loaded.folder, trust_remote_code=False)
        return [tokenizer.encode(read_prompts(path, 1)[0])[:512] for path in PROMPTS]
    generator = torch.Generator().manual_seed(6)
    top = min(4096, loaded.vocab_size)
    return [torch.randint(3, top, (48,), generator=generator).tolist() for _ in range(4)]


def gains(core: EngineCore, prompts: list[list[int]], tokens: int) -> dict[str, dict[str, float]]:
    """Tokens per step, tokens per second and speedup by method."""
    decode(core, "off", prompts[:1], 8)  # warms up
    found: dict[str, dict[str, float]] = {}
    for method in METHODS:
        _, stats, seconds = decode(core, method, prompts, tokens)
        speed = stats.tokens / seconds
        baseline = found["off"]["tokens_per_second"] if found else speed
        found[method] = {
            "tau": stats.tau,
            "tokens_per_second": speed,
            "speedup": speed / baseline,
        }
    return found


def plot(report: dict, path: Path) -> None:
    """Step time by rows beside the time that its reads take; the gain of each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, costs in report["step_seconds"].items():
        left.plot(list(costs), [1e3 * seconds for seconds in costs.values()], marker="o", label=way)
    left.axhline(1e3 * report["bound_seconds"], color="k", ls="--", label="reads at copy speed")
    left.set(xlabel="rows in the step", ylabel="ms", title=report["model"])
    left.set_ylim(bottom=0)
    left.legend()
    methods = report["methods"]
    bars = right.bar(list(methods), [found["speedup"] for found in methods.values()])
    right.bar_label(bars, [f"tau {found['tau']:.2f}" for found in methods.values()])
    right.set(ylabel="tokens per second, plain = 1", title=report["device"])
    figure.savefig(path, dpi=120)


def check(options: argparse.Namespace) -> dict:
    """Everything proved and measured, as the JSON document."""
    device = torch.device(options.device)
    is_cuda = device.type == "cuda"
    ways: dict[str, dict[str, str]] = WAYS if is_cuda else {"cpu": {}}
    with tqdm(total=3 + len(ways), file=sys.stderr) as progress:
        report: dict = {
            "device": torch.cuda.get_device_name() if is_cuda else "cpu",
            "model": str(options.model or options.shape),
            "torch": torch.__version__,
            "identical": losslessness(device),
        }
        progress.update()
        if options.model:
            loaded = real_model(options.model, device)
        else:
            loaded = random_model(options.shape, device, torch.bfloat16)
        read = weight_bytes(loaded.model)  # before a runner repacks them
        progress.update()
        report["step_seconds"] = {}
        for way, keywords in reversed(ways.items()):  # the fastest one last: it goes on to decode
            core = build(loaded, **keywords)
            report["step_seconds"][way] = step_costs(core._runner, loaded.vocab_size)
            report["passes"] = core._runner.passes
            progress.update()
        report["bandwidth_bytes_per_second"] = bandwidth(device)
        read += kv_bytes(core._runner)
        report["bound_seconds"] = read / report["bandwidth_bytes_per_second"]
        prompts = texts_to_decode(loaded, options.model is not None)
        report["methods"] = gains(core, prompts, options.tokens)
        progress.update()
    return report


def main() -> int:
    """Run all checks; the exit code says whether all was lossless."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="weights to measure with")
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="of random weights")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="per prompt")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "gpu_check: no CUDA device here; --shape tiny --device cpu is a dry run\n")
    try:
        report = check(options)
    except TreelineError as error:
        parser.exit(2, f"gpu_check: {error}\n")
    text = json.dumps(report, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if options.plot:
        plot(report, options.plot)
    return 0 if all(all(same.values()) for same in report["identical"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
