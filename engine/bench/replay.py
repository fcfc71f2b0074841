"""Arms on recorded text at several step costs: the table that prices methods without a machine."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tqdm import tqdm

from engine.bench.arm import Arm
from engine.bench.reliability import Reliability
from engine.bench.replay_row import Replayed, ReplayRow, replay_row
from engine.bench.replayer import Replayer
from engine.bench.trace import Recording, Trace
from engine.errors import ConfigError

ALL = "all"  # the row of every suite together


def replay(
    recording: Recording,
    arms: Sequence[Arm],
    options: argparse.Namespace,
    reliability: Reliability | None = None,
) -> list[ReplayRow]:
    """A row per suite, arm and slope, and one for all suites where there are several.

    `options`: `suites`, `limit` (prompts per suite), `max_tokens`, `slope` (several), and `config`
    for the methods' constants. `reliability` takes in what `auto` predicts. Raises ConfigError.
    """
    suites = _chosen(recording, options)
    config, slopes = options.config.speculation, options.slope
    total = len(arms) * len(slopes) * sum(map(len, suites.values()))
    rows: list[ReplayRow] = []
    with tqdm(total=total, unit="trace", file=sys.stderr, disable=None) as progress:
        for arm in arms:
            counts: dict[str, list[Replayed]] = {}
            for slope in slopes:
                replayer = Replayer(arm, config, slope, recording, reliability)
                progress.set_description(f"{arm.label} {slope:g}")
                if replayer.is_priced or not counts:
                    counts = {
                        suite: _replay_all(replayer, traces, progress.update)
                        for suite, traces in suites.items()
                    }
                else:
                    progress.update(sum(map(len, suites.values())))
                rows += [replay_row(suite, arm, slope, parts) for suite, parts in counts.items()]
                if len(counts) > 1:
                    every = [part for parts in counts.values() for part in parts]
                    rows.append(replay_row(ALL, arm, slope, every))
    order = [*suites, ALL]
    return sorted(rows, key=lambda row: (order.index(row.suite), row.slope))


def _replay_all(
    replayer: Replayer, traces: Iterable[Trace], advance: Callable[[], object]
) -> list[Replayed]:
    replayed: list[Replayed] = []
    for trace in traces:
        replayed.append(replayer.replay(trace))
        advance()
    return replayed


def _chosen(recording: Recording, options: argparse.Namespace) -> dict[str, list[Trace]]:
    """Traces by suite, in recorded order, cut as asked."""
    suites: dict[str, list[Trace]] = {}
    for trace in recording.traces:
        suites.setdefault(trace.suite, []).append(_cut(trace, options.max_tokens))
    unknown = [suite for suite in options.suites or () if suite not in suites]
    if unknown:
        raise ConfigError(f"--suites: {unknown[0]} was not recorded; there are {', '.join(suites)}")
    return {suite: suites[suite][: options.limit] for suite in options.suites or suites}


def _cut(trace: Trace, max_tokens: int | None) -> Trace:
    if max_tokens is None or max_tokens >= trace.max_tokens:
        return trace
    return replace(trace, token_ids=trace.token_ids[:max_tokens], max_tokens=max_tokens)
