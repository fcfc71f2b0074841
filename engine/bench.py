"""Methods side by side on real prompts: the same engine, the same prompts, outputs compared first.

For each prompt all methods run one after the other, plain decoding first, so that a machine that
drifts drifts for all of them alike. Tokens and forwards are counted by the engine. A speed-up means
nothing where `identical` is below `prompts`, which is why that column stands beside it.
"""

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.build import build_core, load_tokenizer
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.text.tokenizer import Tokenizer
from engine.types import EngineRequest, SamplingParams, SpecStats

REFERENCE = "off"


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded by one method."""

    token_ids: tuple[int, ...]
    stats: SpecStats
    seconds: float  # from adding the request to its last token, prefill included
    host_seconds: float  # of that, outside the forward passes


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one suite, in the terms of ARCHITECTURE.md."""

    suite: str
    method: str
    prompts: int
    tokens: int
    steps: int
    tau: float
    hit_rate: float
    accept_length: float
    draft_nodes: float  # exploration nodes per step
    verify_nodes: float  # candidate nodes per step
    tokens_per_second: float
    speedup: float  # over plain decoding, same prompts, same session
    host_ms_per_step: float
    identical: int  # prompts whose tokens equal plain decoding's


def run(options: argparse.Namespace) -> int:
    """The `treeline bench` command. Returns the exit code."""
    config = dataclasses.replace(options.config, max_batch=1, prefix_reuse=False)
    methods = [REFERENCE, *(m for m in options.methods if m != REFERENCE)]
    tokenizer = load_tokenizer(config)
    suites = {
        suite: read_prompts(options.data / f"{suite}.jsonl", options.limit)
        for suite in options.suites
    }
    core, info = build_core(config, tokenizer)
    bench = Bench(config, core, tokenizer, options.max_tokens)
    bench.run(methods[-1], "Warm up.", limit=16)
    rows: list[Row] = []
    total = sum(map(len, suites.values())) * len(methods)
    with tqdm(total=total, unit="run", file=sys.stderr, disable=None) as progress:
        for suite, prompts in suites.items():
            runs: dict[str, list[Run]] = {method: [] for method in methods}
            for prompt in prompts:
                for method in methods:
                    progress.set_description(f"{suite} {method}")
                    runs[method].append(bench.run(method, prompt))
                    progress.update()
            rows += [summarise(suite, m, runs[m], runs[REFERENCE]) for m in methods]
    print(table(rows))
    if options.json:
        document = {
            "fingerprint": fingerprint(config, info.dtype) | {"max_tokens": options.max_tokens},
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


class Bench:
    """Runs single prompts, greedy, one at a time."""

    def __init__(
        self, config: EngineConfig, core: EngineCore, tokenizer: Tokenizer, max_tokens: int
    ) -> None:
        self._config = config
        self._core = core
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._count = 0

    def run(self, method: str, prompt: str, limit: int | None = None) -> Run:
        """Decode one user message, in the chat template if the model has one."""
        token_ids = self._encode(prompt)
        room = self._core.max_model_len - len(token_ids)
        params = SamplingParams(
            max_tokens=min(limit or self._max_tokens, room), seed=0, temperature=0.0
        )
        self._count += 1
        plan = self._config.speculation.resolve(method)
        begin = time.perf_counter()
        request = EngineRequest(
            f"bench-{self._count}", tuple(token_ids), params, plan, time.monotonic()
        )
        self._core.add(request)
        produced: list[int] = []
        stats, forward = SpecStats(), 0.0
        while self._core.has_work:
            step = self._core.step()
            forward += step.forward_seconds
            for output in step.outputs:
                produced += output.new_token_ids
                if output.error:
                    raise RuntimeError(f"{method}: {output.error}")
                stats = output.stats or stats
        seconds = time.perf_counter() - begin
        return Run(tuple(produced), stats, seconds, seconds - forward)

    def _encode(self, prompt: str) -> list[int]:
        if not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(prompt)
        text = self._tokenizer.render_chat([{"role": "user", "content": prompt}])
        return self._tokenizer.encode(text, add_special_tokens=False)


def read_prompts(path: Path, limit: int) -> list[str]:
    """The first user messages of a JSONL file, `turns[0]` or `prompt` of each row.

    Raises ConfigError naming file and line.
    """
    prompts: list[str] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if len(prompts) == limit:
            break
        try:
            row = json.loads(line)
            prompts.append(str(row["turns"][0] if row.get("turns") else row["prompt"]))
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            raise ConfigError(f"{path}:{number}: no prompt here ({error!r})") from error
    return prompts


def summarise(suite: str, method: str, runs: Sequence[Run], reference: Sequence[Run]) -> Row:
    """One row of the table."""
    stats = sum((run.stats for run in runs), SpecStats())
    seconds = sum(run.seconds for run in runs)
    baseline = sum(run.seconds for run in reference) / sum(len(r.token_ids) for r in reference)
    steps = max(1, stats.steps)
    return Row(
        suite=suite,
        method=method,
        prompts=len(runs),
        tokens=stats.tokens,
        steps=stats.steps,
        tau=stats.tau,
        hit_rate=stats.hit_rate,
        accept_length=stats.accept_length,
        draft_nodes=stats.explored_tokens / steps,
        verify_nodes=stats.draft_tokens / steps,
        tokens_per_second=stats.tokens / seconds,
        speedup=baseline / (seconds / stats.tokens),
        host_ms_per_step=1e3 * sum(run.host_seconds for run in runs) / steps,
        identical=sum(
            run.token_ids == plain.token_ids for run, plain in zip(runs, reference, strict=True)
        ),
    )


def table(rows: Iterable[Row]) -> str:
    """The rows as aligned text."""
    return "\n".join(_lines(list(rows)))


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'suite':<12}{'method':<16}{'tau':>6}{'HR':>6}{'AL':>6}{'draft':>7}{'verify':>7}"
        f"{'tok/s':>8}{'speedup':>9}{'host ms':>9}{'identical':>11}"
    )
    for row in rows:
        same = f"{row.identical}/{row.prompts}"
        yield (
            f"{row.suite:<12}{row.method:<16}{row.tau:>6.2f}{row.hit_rate:>6.2f}"
            f"{row.accept_length:>6.2f}{row.draft_nodes:>7.1f}{row.verify_nodes:>7.1f}"
            f"{row.tokens_per_second:>8.1f}{row.speedup:>9.2f}{row.host_ms_per_step:>9.2f}"
            f"{same:>11}"
        )


def fingerprint(config: EngineConfig, dtype: str) -> dict[str, Any]:
    """What the numbers depend on besides the code's speed."""
    import torch

    return {
        "treeline": version("treeline"),
        "commit": _output_of("git", "rev-parse", "--short", "HEAD"),
        "model": config.model.name,
        "dtype": dtype,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "machine": _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_name() -> str:
    for line in _output_of("cat", "/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
