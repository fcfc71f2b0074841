"""The command behind `treeline bench`: measure, record or replay; then print and write."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.bench.arm import REFERENCE, Arm, arms
from engine.bench.fingerprint import fingerprint
from engine.bench.measure import DEFAULT_MAX_TOKENS, measure, open_bench
from engine.bench.plots import plot, plot_replay, require_matplotlib
from engine.bench.prompts import read_suites
from engine.bench.recorder import record
from engine.bench.reliability import Reliability
from engine.bench.replay import replay
from engine.bench.replay_row import ReplayRow
from engine.bench.replayer import NOT_REPLAYED
from engine.bench.row import Row
from engine.bench.table import replay_table, table
from engine.bench.trace import Recording
from engine.config import METHODS
from engine.errors import ConfigError

# Options that one kind of run has no use for.
_NOT_WITH = {
    "record": ("methods", "sweep", "runs", "batch", "sampled", "plots", "json", "replay", "slope"),
    "replay": ("data", "prompts", "runs", "batch", "sampled", "raw", "exact"),
}


def run(options: argparse.Namespace) -> int:
    """The `treeline bench` command. Returns the exit code. Raises ConfigError."""
    for mode, others in _NOT_WITH.items():
        if vars(options)[mode]:
            _refuse(mode, others, options)
    if bool(options.replay) != bool(options.slope):
        raise ConfigError("--replay and --slope go together")
    if options.replay:
        return _replay(options)
    if options.record:
        return _record(options)
    return _measure(options)


def _refuse(mode: str, others: Sequence[str], options: argparse.Namespace) -> None:
    for name in others:
        given = vars(options)[name]
        if given and not (name in ("runs", "batch") and given == 1):
            raise ConfigError(f"--{name} does not go with --{mode}")


def _measure(options: argparse.Namespace) -> int:
    if options.plots:
        require_matplotlib()
    compared = _arms(options)
    suites = read_suites(options)
    bench, config, info = open_bench(options)
    rows = measure(bench, compared, suites, options.batch, options.runs)
    print(table(rows))
    conditions = {
        "max_tokens": options.max_tokens or DEFAULT_MAX_TOKENS,
        "exact": config.model.exact,
        "runs": options.runs,
        "batch": options.batch,
        "sampled": options.sampled,
        "raw": options.raw,
    }
    if options.json:
        _write(options.json, fingerprint(config, info.dtype) | conditions, rows)
    if options.plots:
        plot(rows, options.plots)
    return 0


def _record(options: argparse.Namespace) -> int:
    suites = read_suites(options)
    bench, config, info = open_bench(options)
    traces = record(bench, Arm(REFERENCE, config.speculation.resolve(REFERENCE)), suites)
    eos_token_ids = frozenset(info.eos_token_ids)
    recording = Recording(
        tuple(traces),
        eos_token_ids,
        fingerprint(config, info.dtype),
        bench.core.planner.bigrams,
    )
    recording.save(options.record)
    num_tokens = sum(len(trace.token_ids) for trace in traces)
    print(f"{options.record}: {len(traces)} prompts, {num_tokens} tokens")
    return 0


def _replay(options: argparse.Namespace) -> int:
    if options.plots:
        require_matplotlib()
    recording = Recording.load(options.replay)
    reliability = Reliability()
    rows = replay(recording, _arms(options), options, reliability)
    print(replay_table(rows))
    if options.json:
        _write(options.json, recording.fingerprint | {"replay": options.replay.name}, rows)
    if options.plots:
        plot_replay(rows, reliability, options.plots)
    return 0


def _arms(options: argparse.Namespace) -> list[Arm]:
    sweep = dict(options.sweep)
    if len(sweep) < len(options.sweep):
        raise ConfigError("--sweep: an axis is named twice")
    speculation = options.config.speculation
    unusable = set(NOT_REPLAYED) if options.replay else set()
    if speculation.rest.datastore is None:
        unusable.add("rest")
    usable = [method for method in METHODS if method not in unusable]
    return arms(speculation, options.methods or usable, sweep)


def _write(
    path: Path, conditions: Mapping[str, Any], rows: Sequence[Row] | Sequence[ReplayRow]
) -> None:
    document = {"fingerprint": dict(conditions), "rows": [asdict(row) for row in rows]}
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
