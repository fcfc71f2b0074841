#!/usr/bin/env python3
"""Where a decoding step's time goes, by rows; and how a pass grows with the context.

    python scripts/profile_step.py --json step.json --plot step.png

The table splits real steps of the engine core. Its parts are measured under torch's profiler, which
slows them, and scaled to the same steps' time without it. Trees are Goose's, filled up to the asked
number of rows. The plot shows a pass by context beside the bounds that no engine can pass: bytes of
the weights and of the requests' KV over the bandwidth of this machine's memory, measured by copying
and by reading large tensors with all threads; the better of the two counts. For many rows it is
the products of the linear layers instead, over what a large product of matrices reaches in the
model's dtype or in float32, whichever is faster.
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
_MOVED_BYTES = 1 << 28
_PRODUCT = (1024, 2048, 2048)  # sizes of a product of matrices that stays in a CPU's caches


def pass_seconds(runner: ModelRunner, rows: int, context: int, requests: int = 1) -> float:
    """The median pass of trees of `rows` rows, each behind `context` tokens of made-up KV."""
    tree = TokenTree.anchored(0)
    for node in range(rows - 1):
        tree.add(node // 2, node % 2)
    parts = [RunRequest(slot, context, (), tree, Needs(top_k=10)) for slot in range(requests)]
    times = []
    for _ in range(_REPEATS):
        runner.run(parts)
        times.append(runner.forward_seconds)
    return statistics.median(times[1:])


def memory_bandwidth(device: torch.device) -> dict[str, float]:
    """Bytes per second by "copy" (read and written) and "read"; the best of a few, all threads."""
    source = torch.zeros(_MOVED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    ways = {"copy": (2, lambda: target.copy_(source)), "read": (1, source.sum)}
    found = {}
    for way, (passes, move) in ways.items():
        best = float("inf")
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            move()
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        found[way] = passes * _MOVED_BYTES / best
    return found


def product_rate(device: torch.device, dtype: str) -> float:
    """Multiplications (with their additions) per second: the best product of large matrices."""
    rows, inner, columns = _PRODUCT
    best = 0.0
    for kind in (getattr(torch, dtype), torch.float32):
        a = torch.randn(rows, inner, device=device, dtype=kind)
        b = torch.randn(inner, columns, device=device, dtype=kind)
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            torch.mm(a, b)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = max(best, rows * inner * columns / (time.perf_counter() - begin))
    return best


def weight_work(config: EngineConfig, dtype: str) -> tuple[int, int]:
    """Of a pass: bytes of the weights, tied ones once; multiplications per row in linear layers."""
    folder = resolve_source(config.model.source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)))
    size: int = sum(parameter.numel() for parameter in model.parameters())
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    products: int = sum(layer.weight.numel() for layer in layers)
    return size * int(getattr(torch, dtype).itemsize), products


def kv_bytes(runner: ModelRunner, context: int) -> int:
    """What a pass must read of one request's KV."""
    shape = runner.kv.shape
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return context * per_token * runner.kv.data.element_size()


def _make_up_kv(runner: ModelRunner, context: int) -> None:
    first = runner.kv.data[:, :, :1, :, :context].normal_()
    runner.kv.data[:, :, 1:, :, :context] = first


def table(splits: Sequence[Split]) -> str:
    """Milliseconds per step, a column per number of rows."""
    lines = [f"{'ms per step':<14}" + "".join(f"{f'{s.rows} rows':>10}" for s in splits)]
    lines += [f"{part:<14}" + "".join(f"{s.parts[part]:>10.2f}" for s in splits) for part in PARTS]
    lines.append(f"{'step':<14}" + "".join(f"{s.step_ms:>10.2f}" for s in splits))
    return "\n".join(lines)


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Passes by context, with the bounds of the memory's bandwidth, in milliseconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    contexts = document["contexts"]
    for rows, values in document["pass_ms"].items():
        (line,) = axes.plot(contexts, values, marker="o", label=f"{rows} rows")
        axes.plot(
            contexts, document["row_bound_ms"][rows], ":", color=line.get_color(), linewidth=1
        )
    for (requests, values), style in zip(document["bound_ms"].items(), ("--", ":"), strict=True):
        axes.plot(contexts, values, f"k{style}", label=f"bytes moved, {requests} requests")
    label = f"{document['requests']} requests of 1 row"
    axes.plot(contexts, document["requests_ms"], marker="s", label=label)
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
    config = replace(settings.engine, max_batch=options.requests, prefix_reuse=False)
    tokenizer = load_tokenizer(config)
    core, info = build_core(config, tokenizer)
    runner = core._runner
    text = "\n".join(prompt for path in PROMPTS for prompt in read_prompts(path, 99))
    prompt = tokenizer.encode(text)[: options.context]
    # Requests below name goose; its trees must have exactly the asked size.
    FACTORIES["goose"] = lambda shared, plan, _seed: FilledGoose(plan, shared.config.goose)
    contexts = [n for n in options.contexts if n + max(options.rows) <= runner.kv.shape.capacity]
    total = len(options.rows) * (1 + len(contexts)) + len(contexts)
    with tqdm(total=total, unit="point", disable=None) as progress:
        splits = []
        for rows in options.rows:
            splits.append(profile_rows(core, prompt, rows, options.steps))
            progress.update()
        _make_up_kv(runner, max(contexts))
        passes: dict[int, list[float]] = {rows: [] for rows in options.rows}
        for context in contexts:
            for rows in options.rows:
                passes[rows].append(1e3 * pass_seconds(runner, rows, context))
                progress.update()
        together = []
        for context in contexts:
            together.append(1e3 * pass_seconds(runner, 1, context, options.requests))
            progress.update()
    bandwidths = memory_bandwidth(runner.device)
    bandwidth = max(bandwidths.values())
    weights, products = weight_work(config, info.dtype)
    rate = product_rate(runner.device, info.dtype)
    bounds = {
        requests: [1e3 * (weights + requests * kv_bytes(runner, n)) / bandwidth for n in contexts]
        for requests in (1, options.requests)
    }
    row_bounds = {
        rows: [max(moved, 1e3 * rows * products / rate) for moved in bounds[1]]
        for rows in options.rows
    }
    return {
        "fingerprint": fingerprint(config, info.dtype),
        "context": len(prompt),
        "splits": [{"rows": s.rows, "step_ms": s.step_ms, "parts_ms": s.parts} for s in splits],
        "bandwidth_gb_per_s": {way: value / 1e9 for way, value in bandwidths.items()},
        "weight_bytes": weights,
        "products_per_row": products,
        "products_per_s": rate,
        "contexts": contexts,
        "pass_ms": passes,
        "requests": options.requests,
        "requests_ms": together,
        "bound_ms": bounds,
        "row_bound_ms": row_bounds,
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
    for way, value in document["bandwidth_gb_per_s"].items():
        print(f"memory: {value:.1f} GB/s by {way}")
    print(f"products: {document['products_per_s'] / 1e9:.0f} billion per second")
    print(f"{'context':<14}" + "".join(f"{n:>10}" for n in document["contexts"]))
    for rows, values in document["pass_ms"].items():
        print(f"{f'{rows} rows, ms':<14}" + "".join(f"{value:>10.2f}" for value in values))
    named = {f"{document['requests']} requests": document["requests_ms"]}
    named |= {f"bound of {n}": values for n, values in document["bound_ms"].items()}
    named |= {f"of {n} rows": values for n, values in document["row_bound_ms"].items()}
    for name, values in named.items():
        print(f"{name:<14}" + "".join(f"{value:>10.2f}" for value in values))
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
    parser.add_argument("--requests", type=_several, default=8, metavar="N", help="at once")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="of the table")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="per number of rows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    return parser


def _several(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError("must be at least 2")
    return int(text)


def _counts(text: str) -> list[int]:
    counts = [int(word) for word in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("must be positive")
    return counts


if __name__ == "__main__":
    sys.exit(main())
