#!/usr/bin/env python3
"""Tokens per second by streams at once, without and with speculation, in process.

    python scripts/scaling.py --data DIR --json scaling.json --plot scaling.png

DIR holds .jsonl files of prompts (default: the bench's own), taken from all files in turn. Each
stream decodes several of them, one after the other, so that most of the time all streams are there
and a fast one need not wait for the slowest. `off` and `auto` run in turn for each number of
streams, several times over, each first in every other turn; rows are medians, and so is `over off`,
of the turns' own ratios, since the memory's speed changes by the minute. Each run begins with a
round of other prompts off the clock, like a server that has run a while. Answers have half to one
and a half times the asked tokens: ended together, plain requests would also begin together, and
have their prompts read in fewer passes than requests of any real server.
Before anything is timed, `auto` must have given `off`'s tokens, and of timed answers `identical`
counts those that are equal. `host ms` is what a step takes
outside its forward pass. The last line compares a lone request's time to its first token with the
forward pass over its prompt.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.bench.arm import Arm
from engine.bench.bench import Bench
from engine.bench.fingerprint import fingerprint
from engine.bench.prompts import read_prompts
from engine.bench.trial import Trial
from engine.build import build_core, load_tokenizer
from engine.errors import TreelineError
from engine.types import EngineInfo, SamplingParams
from server.config_loader import DEFAULT_CONFIG, load_settings

PROMPTS = Path(__file__).parent / "prompts"
METHODS = ("off", "auto")
_CHECKED_TOKENS = 24
_FIRST_REPEATS = 5


def open_bench(options: argparse.Namespace) -> tuple[Bench, EngineInfo, dict[str, Any]]:
    """Our engine with room for all streams, what was loaded, and the conditions."""
    settings = load_settings(options.config, [], os.environ)
    config = replace(settings.engine, max_batch=max(options.streams), prefix_reuse=False)
    tokenizer = load_tokenizer(config)
    core, info = build_core(config, tokenizer)
    sampling = SamplingParams(options.max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    bench = Bench(config, core, tokenizer, sampling, frozenset(info.eos_token_ids))
    return bench, info, fingerprint(config, info.dtype) | {"max_tokens": options.max_tokens}


def pick_prompts(folder: Path, count: int) -> list[str]:
    """`count` prompts, one of each file in turn, from the start again when they run out."""
    files = [read_prompts(path, count) for path in sorted(folder.glob("*.jsonl"))]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*files))
    found = [prompt for prompt in turns if prompt is not None]
    return list(itertools.islice(itertools.cycle(found), count)) if found else []


def num_prompts(streams: int, options: argparse.Namespace) -> int:
    """Prompts that are timed at so many streams: a few at one stream would be a matter of luck."""
    most: int = max(streams * options.rounds, options.least)
    return most


def lengths(count: int, mean: int) -> list[int]:
    """Tokens of so many answers, half to one and a half times `mean`; any eight average to it."""
    return [mean // 2 + mean * (place * 5 % 8) // 7 for place in range(count)]


def differing(bench: Bench, arms: Sequence[Arm], prompts: Sequence[str]) -> int:
    """How many prompts, decoded together, speculation changed. Must be 0. Warms up, too."""
    plain, drafted = (
        bench.run(arm, prompts, bench.fresh(arm), _CHECKED_TOKENS).token_ids for arm in arms
    )
    return sum(a != b for a, b in zip(plain, drafted, strict=True))


def first_token(bench: Bench, arm: Arm, prompt: str) -> tuple[float, float]:
    """Milliseconds to a lone request's first token, and of its prompt's forward passes; medians."""
    waits, forwards = [], []
    for _ in range(_FIRST_REPEATS):
        request = bench.request(arm, prompt, 1)
        begin = time.perf_counter()
        bench.core.add(request)
        forward = 0.0
        while bench.core.has_work:
            forward += bench.core.step().forward_seconds
        waits.append(1e3 * (time.perf_counter() - begin))
        forwards.append(1e3 * forward)
    return statistics.median(waits), statistics.median(forwards)


def summarise(
    streams: int, method: str, trials: Sequence[Trial], plain: Sequence[Trial]
) -> dict[str, Any]:
    """One row: medians over the trials of one method at one number of streams. `plain`: the trials
    of `off` in the same turns."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    tokens = sum(map(len, trials[0].token_ids))
    ratios = [one.seconds / trial.seconds for one, trial in zip(plain, trials, strict=True)]
    return {
        "streams": streams,
        "method": method,
        "tokens_per_second": median([tokens / trial.seconds for trial in trials]),
        "over_off": median(ratios),
        "tau": median([trial.stats.tau for trial in trials]),
        "step_ms": median([1e3 * t.seconds / t.num_steps for t in trials]),
        "host_ms_per_step": median(
            [1e3 * (t.seconds - t.forward_seconds) / t.num_steps for t in trials]
        ),
        "ttft_ms": median([1e3 * statistics.median(t.ttft_seconds) for t in trials]),
        "tokens": tokens,
        "prompts": len(trials[0].token_ids),
        "identical": min(
            sum(a == b for a, b in zip(one.token_ids, trial.token_ids, strict=True))
            for one, trial in zip(plain, trials, strict=True)
        ),
        "runs": len(trials),
    }


def measure(bench: Bench, arms: Sequence[Arm], options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per number of streams and method. All methods run in turn, several times over."""
    prompts: list[str] = options.prompts
    rows = []
    total = len(options.streams) * len(arms) * options.runs
    with tqdm(total=total, unit="run", disable=None) as progress:
        for streams in options.streams:
            trials: dict[Arm, list[Trial]] = {arm: [] for arm in arms}
            count = num_prompts(streams, options)
            mine, others = prompts[:count], prompts[count : count + streams]
            limits = lengths(count, options.max_tokens)
            for turn in range(options.runs):
                for arm in arms[:: -1 if turn % 2 else 1]:
                    progress.set_description(f"{streams} streams, {arm.label}")
                    shared = bench.fresh(arm)
                    bench.run(arm, others, shared)
                    trials[arm].append(bench.run(arm, mine, shared, limits, streams))
                    progress.update()
            plain = trials[arms[0]]
            rows += [summarise(streams, arm.label, trials[arm], plain) for arm in arms]
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as aligned text."""
    names = f"{'tok/s':>9}{'over off':>10}{'tau':>7}{'step ms':>9}{'host ms':>9}{'identical':>11}"
    lines = [f"{'streams':>7} {'method':<6}{names}"]
    lines += [
        f"{row['streams']:>7} {row['method']:<6}{row['tokens_per_second']:>9.1f}"
        f"{row['over_off']:>10.3f}{row['tau']:>7.2f}"
        f"{row['step_ms']:>9.1f}{row['host_ms_per_step']:>9.2f}"
        f"{row['identical']:>7} / {row['prompts']}"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Tokens per second by streams, a line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        streams = [row["streams"] for row in mine]
        axes.plot(streams, [row["tokens_per_second"] for row in mine], marker="o", label=method)
        axes.set_xscale("log", base=2)
        axes.set_xticks(streams, [str(count) for count in streams])
    axes.set_xlabel("streams at once")
    axes.set_ylabel("tokens/s, all streams together")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if speculation changed any token, and then nothing is timed."""
    options = _parser().parse_args(arguments)
    try:
        count = max(streams + num_prompts(streams, options) for streams in options.streams)
        options.prompts = pick_prompts(options.data, count)
        if not options.prompts:
            print(f"scaling: {options.data}: no .jsonl files here", file=sys.stderr)
            return 2
        bench, info, conditions = open_bench(options)
        speculation = load_settings(options.config, [], os.environ).engine.speculation
        arms = [Arm(method, speculation.resolve(method)) for method in METHODS]
        wrong = differing(bench, arms, options.prompts[: max(options.streams)])
        if wrong and info.is_exact:
            print(f"scaling: {wrong} prompts differ with speculation", file=sys.stderr)
            return 1
        wait, forward = first_token(bench, arms[0], options.prompts[0])
        rows = measure(bench, arms, options)
    except TreelineError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    checked = max(options.streams)
    print(f"{checked - wrong} of {checked} prompts identical")
    print(f"first token {wait:.1f} ms, its forward pass {forward:.1f} ms: x {wait / forward:.3f}")
    if options.json:
        document = {
            "fingerprint": conditions,
            "differing_prompts": wrong,
            "ttft_ms": wait,
            "prefill_forward_ms": forward,
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=PROMPTS, metavar="DIR")
    parser.add_argument("--streams", type=_counts, default=[1, 2, 4, 8, 16, 32], metavar="N,N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each point")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="prompts of a stream")
    parser.add_argument("--least", type=int, default=8, metavar="N", help="prompts of a point")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="per prompt")
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
