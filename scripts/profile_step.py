#!/usr/bin/env python3
"""Where a decoding step's time goes, by rows; and how a pass grows with the context.

    python scripts/profile_step.py --json step.json --plot step.png

The table splits real steps of the engine core. Its parts are measured under torch's profiler, which
slows them, and scaled to the same steps' time without it. Trees are Goose's, filled up to the asked
number of rows. The plot shows a pass by context beside the bound that no engine can pass: the bytes
of the weights and of the request's KV over the bandwidth of this machine's memory, measured by
copying large tensors.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from step_split import PARTS, FilledGoose, Split, profile_rows
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM

from engine.bench.fingerprint import fingerprint
from engine.bench.prompts import read_prompts
from engine.build import build_core, load_tokenizer
from engine.config import EngineConfig
from engine.errors import TreelineError
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.model.source import resolve_source
from engine.spec.drafter import Needs
from engine.spec.registry import FACTORIES
from engine.spec.tree import TokenTree
from server.config_loader import DEFAULT_CONFIG, load_settings

PROMPTS = sorted((Path(__file__).parent / "prompts").glob("*.jsonl"))
_REPEATS = 7
_COPIED_BYTES = 1 << 28


def pass_seconds(runner: ModelRunner, rows: int, context: int) -> float:
    """The median pass of a tree of `rows` rows behind `context` tokens of made-up KV."""
    tree = TokenTree.anchored(0)
    for node in range(rows - 1):
        tree.add(node // 2, node % 2)
    part = RunRequest(0, context, (), tree, Needs(top_k=10))
    times = []
    for _ in range(_REPEATS):
        runner.run([part])
        times.append(runner.forward_seconds)
    return statistics.median(times[1:])


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of copying a large tensor; the best of a few."""
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * _COPIED_BYTES / (time.perf_counter() - begin))
    return best


def weight_bytes(config: EngineConfig, dtype: str) -> int:
    """What a pass must read of the weights: all of them, tied ones once."""
    folder = resolve_source(config.model.source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)))
    size: int = sum(parameter.numel() for parameter in model.parameters())
    return size * int(getattr(torch, dtype).itemsize)


def kv_bytes(runner: ModelRunner, context: int) -> int:
    """What a pass must read of one request's KV."""
    shape = runner.kv.shape
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return context * per_token * runner.kv.data.element_size()


def table(splits: Sequence[Split]) -> str:
    """Milliseconds per step, a column per number of rows."""
    lines = [f"{'ms per step':<14}" + "".join(f"{f'{s.rows} rows':>10}" for s in splits)]
    lines += [f"{part:<14}" + "".join(f"{s.parts[part]:>10.2f}" for s in splits) for part in PARTS]
    lines.append(f"{'step':<14}" + "".join(f"{s.step_ms:>10.2f}" for s in splits))
    return "\n".join(lines)


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Passes by context, with the bound of the memory's bandwidth, in milliseconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    contexts = document["contexts"]
    for rows, values in document["pass_ms"].items():
        axes.plot(contexts, values, marker="o", label=f"{rows} rows")
    axes.plot(contexts, document["bound_ms"], "k--", label="bytes moved, at copy bandwidth")
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [str(context) for context in contexts])
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("ms per pass")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=130)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured, as the JSON document."""
    settings = load_settings(options.config, [], os.environ)
    config = replace(settings.engine, max_batch=1, prefix_reuse=False)
    tokenizer = load_tokenizer(config)
    core, info = build_core(config, tokenizer)
    runner = core._runner
    text = "\n".join(prompt for path in PROMPTS for prompt in read_prompts(path, 99))
    prompt = tokenizer.encode(text)[: options.context]
    # Requests below name goose; its trees must have exactly the asked size.
    FACTORIES["goose"] = lambda shared, plan, _seed: FilledGoose(plan, shared.config.goose)
    contexts = [n for n in options.contexts if n + max(options.rows) <= runner.kv.shape.capacity]
    total = len(options.rows) * (1 + len(contexts))
    with tqdm(total=total, unit="point", disable=None) as progress:
        splits = []
        for rows in options.rows:
            splits.append(profile_rows(core, prompt, rows, options.steps))
            progress.update()
        runner.kv.data[:, :, 0].normal_()
        passes: dict[int, list[float]] = {rows: [] for rows in options.rows}
        for context in contexts:
            for rows in options.rows:
                passes[rows].append(1e3 * pass_seconds(runner, rows, context))
                progress.update()
    bandwidth = copy_bandwidth(runner.device)
    weights = weight_bytes(config, info.dtype)
    return {
        "fingerprint": fingerprint(config, info.dtype),
        "context": len(prompt),
        "splits": [{"rows": s.rows, "step_ms": s.step_ms, "parts_ms": s.parts} for s in splits],
        "bandwidth_gb_per_s": bandwidth / 1e9,
        "weight_bytes": weights,
        "contexts": contexts,
        "pass_ms": passes,
        "bound_ms": [1e3 * (weights + kv_bytes(runner, n)) / bandwidth for n in contexts],
        "table": table(splits),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        document = run(options)
    except TreelineError as error:
        print(f"profile_step: {error}", file=sys.stderr)
        return 2
    print(f"context {document['context']}, {document['fingerprint']['dtype']}")
    print(document.pop("table"))
    print(f"memory: {document['bandwidth_gb_per_s']:.1f} GB/s by copying")
    print(f"{'context':<14}" + "".join(f"{n:>10}" for n in document["contexts"]))
    for rows, values in document["pass_ms"].items():
        print(f"{f'{rows} rows, ms':<14}" + "".join(f"{value:>10.2f}" for value in values))
    print(f"{'bound, ms':<14}" + "".join(f"{value:>10.2f}" for value in document["bound_ms"]))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(document, options.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=_counts, default=[1, 8, 16, 61], metavar="N,N")
    parser.add_argument(
        "--contexts", type=_counts, default=[128 << i for i in range(7)], metavar="N,N"
    )
    parser.add_argument("--context", type=int, default=512, metavar="N", help="of the table")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="per number of rows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    return parser


def _counts(text: str) -> list[int]:
    counts = [int(word) for word in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("must be positive")
    return counts


if __name__ == "__main__":
    sys.exit(main())
