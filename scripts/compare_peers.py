#!/usr/bin/env python3
"""Treeline beside transformers and llama.cpp: one machine, one model, the same prompts.

    python scripts/compare_peers.py --data DIR --limit 10 --max-tokens 128 --json out.json

DIR holds .jsonl files of prompts; the first `--limit` of each are answered greedily, one at a time,
by every engine in turn, so that a machine that drifts drifts for all alike. Prompt lookup runs in
several settings, and its fastest is reported. Treeline and transformers compute in the same dtype;
llama.cpp runs the GGUF file as it is. `identical` counts the prompts for which an engine's
speculation changed nothing: the same tokens as its own plain decoding.

`--servers N` then asks Treeline's server and llama-cpp-python's over HTTP, N prompts of all files,
by one client and by four at once. The latter takes more packages than llama-cpp-python brings:
pip install starlette-context sse-starlette pydantic-settings.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from compare_servers import compare_servers, open_servers, summarise_servers
from peers import Answer, LlamaCpp, Peer, Transformers, Treeline
from tqdm import tqdm

from engine.bench.arm import Arm
from engine.bench.bench import Bench
from engine.bench.fingerprint import fingerprint
from engine.bench.prompts import read_prompts
from engine.build import build_core, load_tokenizer
from engine.config import EngineConfig
from engine.errors import TreelineError
from engine.model.source import find_gguf, resolve_source
from engine.types import SamplingParams
from server.config_loader import DEFAULT_CONFIG, load_settings

NAMES = (
    "treeline off",
    "treeline auto",
    "transformers",
    "transformers prompt lookup",
    "llama.cpp",
    "llama.cpp prompt lookup",
)
PLAIN = {name: name.removesuffix(" prompt lookup") for name in NAMES} | {
    "treeline auto": "treeline off"
}
LOOKUPS = {"transformers": (3, 5, 10), "llama.cpp": (2, 5, 10)}
_WARM_UP_TOKENS = 8


def compare(
    peers: Sequence[Peer],
    prompts: Sequence[str],
    encode: Callable[[str], list[int]],
    max_tokens: int,
) -> dict[str, dict[str, list[Answer]]]:
    """Answers to all prompts by peer and setting, interleaved."""
    answers: dict[str, dict[str, list[Answer]]] = {}
    for peer in peers:
        peer.run(prompts[0], encode(prompts[0]), _WARM_UP_TOKENS)
    with tqdm(total=len(prompts) * len(peers), unit="answer", disable=None) as progress:
        for prompt in prompts:
            token_ids = encode(prompt)
            for peer in peers:
                progress.set_description(peer.name)
                answer = peer.run(prompt, token_ids, max_tokens)
                answers.setdefault(peer.name, {}).setdefault(peer.setting, []).append(answer)
                progress.update()
    return answers


def summarise(
    answers: Mapping[str, Mapping[str, Sequence[Answer]]], missing: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row per name of NAMES. `missing`: why there are no answers of that name."""
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        if name in missing:
            empty = dict.fromkeys(("tokens_per_second", "ttft_ms", "tau"))
            rows.append({"name": name, **empty, "missing": missing[name]})
            continue
        setting, best = max(answers[name].items(), key=lambda item: _rate(item[1]))
        (plain,) = answers[PLAIN[name]].values()
        tokens = sum(len(answer.token_ids) for answer in best)
        rows.append(
            {
                "name": name,
                "tokens_per_second": _rate(best),
                "ttft_ms": 1e3 * statistics.median(answer.ttft for answer in best),
                "tau": tokens / sum(answer.forwards for answer in best),
                "setting": setting,
                "prompts": len(best),
                "tokens": tokens,
                "identical": sum(
                    a.token_ids == b.token_ids for a, b in zip(best, plain, strict=True)
                ),
            }
        )
    return rows


def _rate(answers: Sequence[Answer]) -> float:
    return sum(len(a.token_ids) for a in answers) / sum(a.seconds for a in answers)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| engine | tokens/s | TTFT ms | tau | identical | setting |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "missing" in row:
            lines.append(f"| {row['name']} | - | - | - | - | {row['missing']} |")
            continue
        tau = "-" if row["tau"] is None else f"{row['tau']:.2f}"
        lines.append(
            f"| {row['name']} | {row['tokens_per_second']:.1f} | {row['ttft_ms']:.0f} | "
            f"{tau} | {row['identical']}/{row['prompts']} | {row['setting']} |"
        )
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Tokens per second as bars."""
    from matplotlib.figure import Figure

    found = [row for row in rows if "missing" not in row]
    figure = Figure(figsize=(8, 0.6 * len(found) + 1), layout="constrained")
    axes = figure.add_subplot()
    names = [row["name"] for row in found][::-1]
    colours = ["tab:green" if name.startswith("treeline") else "tab:gray" for name in names]
    bars = axes.barh(names, [row["tokens_per_second"] for row in found][::-1], color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_xlabel("tokens/s, one stream unless said otherwise")
    figure.savefig(path, dpi=130)


def open_peers(
    config: EngineConfig, options: argparse.Namespace, prompts: Sequence[str]
) -> tuple[list[Peer], dict[str, str], Bench, str]:
    """Every engine that is here, why others are not, our own bench and its dtype."""
    tokenizer = load_tokenizer(config)
    core, info = build_core(config, tokenizer)
    eos_token_ids = frozenset(info.eos_token_ids)
    sampling = SamplingParams(options.max_tokens, seed=0, temperature=0.0)
    bench = Bench(config, core, tokenizer, sampling, eos_token_ids)
    arms = [Arm(method, config.speculation.resolve(method)) for method in ("off", "auto")]
    peers: list[Peer] = [Treeline(bench, arm) for arm in arms]
    folder = resolve_source(config.model.source)
    model = Transformers.load(folder, info.dtype, info.device)
    peers += [Transformers(model, lookup) for lookup in (0, *LOOKUPS["transformers"])]
    context = llama_context(bench, prompts, options.max_tokens)
    missing: dict[str, str] = {}
    try:
        gguf = _gguf(config, options)
        threads = torch.get_num_threads()
        plain, reading = (LlamaCpp.load(gguf, context, threads, flag) for flag in (False, True))
        peers.append(LlamaCpp(plain, eos_token_ids, 0))
        peers += [LlamaCpp(reading, eos_token_ids, lookup) for lookup in LOOKUPS["llama.cpp"]]
    except ImportError:
        missing = dict.fromkeys(NAMES[4:], "llama-cpp-python is not installed")
    except (TreelineError, ValueError) as error:
        missing = dict.fromkeys(NAMES[4:], str(error))
    return peers, missing, bench, info.dtype


def llama_context(bench: Bench, prompts: Sequence[str], max_tokens: int) -> int:
    """A context for llama.cpp that holds every prompt, its answer and a draft."""
    longest = max(len(bench.encode(prompt)) for prompt in prompts)
    return -(-(longest + max_tokens + max(LOOKUPS["llama.cpp"]) + 1) // 256) * 256


def server_rows(
    config: EngineConfig, options: argparse.Namespace, prompts: Sequence[str], bench: Bench
) -> list[dict[str, Any]]:
    """Rows of the servers, asked `options.servers` prompts, spread over all files."""
    asked = list(prompts[:: -(-len(prompts) // options.servers)])
    try:
        gguf: Path | None = _gguf(config, options)
    except (TreelineError, ValueError):
        gguf = None
    context = llama_context(bench, asked, options.max_tokens)
    threads = torch.get_num_threads()
    encode = partial(load_tokenizer(config).encode, add_special_tokens=False)
    with open_servers(options.config, gguf, context, threads, encode) as (servers, missing):
        loads = compare_servers(servers, asked, options.max_tokens)
    return summarise_servers(loads, missing)


def _gguf(config: EngineConfig, options: argparse.Namespace) -> Path:
    given: Path | None = options.gguf
    if given is not None:
        return given
    if config.model.source.package is None:
        raise ValueError("this model comes without a GGUF file; name one with --gguf")
    return find_gguf(config.model.source.package)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = load_settings(options.config, [], os.environ)
        config = replace(settings.engine, max_batch=1, prefix_reuse=False)
        files = sorted(options.data.glob("*.jsonl"))
        prompts = [prompt for file in files for prompt in read_prompts(file, options.limit)]
        if not prompts:
            print(f"compare_peers: {options.data}: no .jsonl files here", file=sys.stderr)
            return 2
        peers, missing, bench, dtype = open_peers(config, options, prompts)
    except TreelineError as error:
        print(f"compare_peers: {error}", file=sys.stderr)
        return 2
    rows = summarise(compare(peers, prompts, bench.encode, options.max_tokens), missing)
    if options.servers:
        peers.clear()  # their weights' memory is the servers' now
        rows += server_rows(config, options, prompts, bench)
    print(table(rows))
    for row in rows:
        if "missing" in row:
            print(f"compare_peers: no {row['name']}: {row['missing']}", file=sys.stderr)
    if options.json:
        conditions = fingerprint(config, dtype) | {"max_tokens": options.max_tokens}
        options.json.write_text(json.dumps({"fingerprint": conditions, "rows": rows}, indent=1))
    if options.plot:
        plot(rows, options.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="prompts per file")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="prompts over HTTP")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
    parser.add_argument("--config", default=DEFAULT_CONFIG, help="of Treeline")
    parser.add_argument("--gguf", type=Path, help="for llama.cpp; default: the model's own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
