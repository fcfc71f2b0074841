#!/usr/bin/env python3
"""Load against any OpenAI-compatible server: what its users would feel, by load.

    python scripts/bench_serving.py --url http://127.0.0.1:8000 --chat --clients 1,4,16
    python scripts/bench_serving.py --rate 0.5,1,2 --slo ttft=500,tpot=50 --json out.json --plots .

Closed loop (`--clients`): so many clients, each sends its next request when the last has ended.
Open loop (`--rate`): requests arrive by a Poisson process, however slow the server is; their times
count from the moment they were due. Tokens are counted by the server's usage, never by chunks: a
speculative server sends several tokens at once. A model for chats may end raw prompts at once: use
`--chat`, or --body '{"ignore_eos": true}' where the server knows that. Needs httpx, and matplotlib
for plots.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from serving_load import Answer, Load, Target, run_load
from tqdm import tqdm

PROMPTS = sorted((Path(__file__).parent / "prompts").glob("*.jsonl"))
QUANTILES = (50, 90, 99)
TIMES = ("ttft", "tpot", "itl", "e2e")


def quantile(values: Sequence[float], percent: float) -> float:
    """Linear between the nearest two; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(
    load: Load, answers: Sequence[Answer], seconds: float, slo: dict[str, float]
) -> dict[str, Any]:
    """One row of the result. `slo`: the most milliseconds of each of some TIMES.

    Goodput counts the requests that ended well and kept every bound of `slo`.
    """
    good = [answer for answer in answers if answer.error is None]
    values = {
        "ttft": [answer.ttft for answer in good],
        "tpot": [answer.tpot for answer in good if answer.tokens > 1],
        "itl": [gap for answer in good for gap in answer.gaps],
        "e2e": [answer.e2e for answer in good],
    }
    kept = [a for a in good if all(1e3 * _slowest(a, name) <= slo[name] for name in slo)]
    row: dict[str, Any] = {
        **asdict(load),
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error}),
        "seconds": seconds,
        "tokens": sum(answer.tokens for answer in good),
        "requests_per_second": len(good) / seconds,
        "tokens_per_second": sum(answer.tokens for answer in good) / seconds,
        "goodput_requests_per_second": len(kept) / seconds,
        "goodput_share": len(kept) / len(answers),
    }
    for name in TIMES:
        row |= {f"{name}_ms_p{q}": 1e3 * quantile(values[name], q) for q in QUANTILES}
    return row


def _slowest(answer: Answer, name: str) -> float:
    if name == "itl":
        return max(answer.gaps, default=0.0)
    value: float = getattr(answer, name)
    return value


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as aligned text, milliseconds as p50/p99."""
    titles = "".join(f"{name:>16}" for name in TIMES)
    lines = [f"{'load':<18}{'ok':>9}{'tok/s':>9}{'goodput':>9}{titles}"]
    for row in rows:
        load = str(Load(row["clients"], row["rate"]))
        ok = f"{row['requests'] - row['failed']}/{row['requests']}"
        times = "".join(f"{row[f'{t}_ms_p50']:>9.1f}/{row[f'{t}_ms_p99']:<6.0f}" for t in TIMES)
        share = f"{100 * row['goodput_share']:.0f}%"
        lines.append(f"{load:<18}{ok:>9}{row['tokens_per_second']:>9.1f}{share:>9}{times}")
    return "\n".join(lines)


def plot(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """serving.png: throughput, goodput and each time's quantiles against the load."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(12, 7), layout="constrained")
    panels = list(figure.subplots(2, 3).flat)
    loads = [row["clients"] or row["rate"] for row in rows]
    panels[0].plot(loads, [row["tokens_per_second"] for row in rows], marker="o")
    panels[0].set_ylabel("tokens/s")
    panels[1].plot(loads, [row["requests_per_second"] for row in rows], marker="o", label="all")
    goodput = [row["goodput_requests_per_second"] for row in rows]
    panels[1].plot(loads, goodput, marker="o", label="within the SLO")
    panels[1].set_ylabel("requests/s")
    for panel, name in zip(panels[2:], TIMES, strict=True):
        for q in QUANTILES:
            panel.plot(loads, [row[f"{name}_ms_p{q}"] for row in rows], marker="o", label=f"p{q}")
        panel.set_ylabel(f"{name} (ms)")
        panel.legend(fontsize="small")
    for panel in panels:
        panel.set_xlabel("clients" if rows[0]["clients"] else "requests/s offered")
    panels[1].legend(fontsize="small")
    figure.savefig(folder / "serving.png", dpi=130)


async def bench(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All loads, one after the other, on a warmed-up server."""
    prompts = read_prompts(options.prompts, options.requests)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=options.url.rstrip("/"), headers=headers, timeout=options.timeout, limits=limits
    ) as client:
        model = options.model or (await client.get("/v1/models")).json()["data"][0]["id"]
        common = {"model": model, "max_tokens": options.max_tokens, "temperature": 0}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        target = Target(client, common | options.body | stream, options.chat)
        warm = await target.ask(prompts[0], time.perf_counter())
        if warm.error:
            raise RuntimeError(warm.error)
        rows = []
        for load in options.loads:
            with tqdm(total=len(prompts), desc=str(load), unit="request", disable=None) as progress:
                answers, seconds = await run_load(
                    target.ask, prompts, load, options.seed, progress.update
                )
            rows.append(summarise(load, answers, seconds, options.slo) | {"model": model})
    return rows


def read_prompts(paths: Sequence[Path], count: int) -> list[str]:
    """`count` prompts, one of each file in turn, from the start again when they run out."""
    files = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        files.append([row["turns"][0] if row.get("turns") else row["prompt"] for row in lines])
    turns = zip(*map(itertools.cycle, files), strict=True)
    return list(itertools.islice(itertools.chain.from_iterable(turns), count))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if any request failed."""
    options = _parser().parse_args(arguments)
    options.loads = [Load(clients=n) for n in options.clients or ()]
    options.loads += [Load(rate=rate) for rate in options.rate or ()]
    try:
        rows = asyncio.run(bench(options))
    except (httpx.HTTPError, OSError, ValueError, KeyError, RuntimeError) as error:
        print(f"bench_serving: {options.url}: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"slo_ms": options.slo, "rows": rows}, indent=1) + "\n")
    if options.plots:
        plot(rows, options.plots)
    for line in sorted({line for row in rows for line in row["errors"]}):
        print(f"bench_serving: {line}", file=sys.stderr)
    return int(any(row["failed"] for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY"))
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--clients", type=_list(int), metavar="N,N", help="closed loop")
    load.add_argument("--rate", type=_list(float), metavar="R,R", help="open loop, requests/s")
    parser.add_argument("--requests", type=int, default=50, metavar="N", help="per load")
    parser.add_argument("--prompts", type=Path, nargs="+", default=PROMPTS, metavar="FILE")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    parser.add_argument("--body", type=json.loads, default={}, help="more fields, as JSON")
    parser.add_argument("--slo", type=_slo, default={}, metavar="ttft=MS,tpot=MS")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds without any byte")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR")
    return parser


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        values = [kind(word) for word in text.split(",")]
        if min(values) <= 0:
            raise argparse.ArgumentTypeError("must be above 0")
        return values

    return numbers


def _slo(text: str) -> dict[str, float]:
    bounds = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in TIMES:
            raise argparse.ArgumentTypeError(f"{name}: known times are {', '.join(TIMES)}")
        bounds[name] = float(value)
    return bounds


if __name__ == "__main__":
    sys.exit(main())
