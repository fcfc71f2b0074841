"""All arms on all prompts, interleaved: a machine that drifts drifts for all of them alike."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tqdm import tqdm

from engine.bench.arm import Arm
from engine.bench.bench import Bench
from engine.bench.row import Row, summarise
from engine.bench.trial import Trial
from engine.build import build_core, load_tokenizer
from engine.config import EngineConfig
from engine.memory import spare_the_collector
from engine.types import EngineInfo, SamplingParams

DEFAULT_MAX_TOKENS = 128
_WARM_UP = "Warm up."
_WARM_UP_TOKENS = 16


def open_bench(options: argparse.Namespace) -> tuple[Bench, EngineConfig, EngineInfo]:
    """The engine that `options` describe, its configuration, and what was loaded."""
    model = replace(options.config.model, exact=options.config.model.exact or options.exact)
    config = replace(options.config, model=model, max_batch=options.batch, prefix_reuse=False)
    tokenizer = load_tokenizer(config)
    core, info = build_core(config, tokenizer)
    spare_the_collector()  # as the server does
    temperature, seed = options.sampled or (0.0, 0)
    sampling = SamplingParams(
        options.max_tokens or DEFAULT_MAX_TOKENS, seed=seed, temperature=temperature
    )
    bench = Bench(config, core, tokenizer, sampling, frozenset(info.eos_token_ids), options.raw)
    return bench, config, info


def measure(
    bench: Bench,
    arms: Sequence[Arm],
    suites: Mapping[str, Sequence[str]],
    batch: int,
    num_runs: int,
) -> list[Row]:
    """A row per suite and arm, suites in order. `arms[0]` is plain decoding.

    For each group of `batch` prompts, `num_runs` times over, all arms run one after the other.
    """
    groups = {suite: _grouped(prompts, batch) for suite, prompts in suites.items()}
    for arm in (arms[0], arms[-1]):
        bench.run(arm, [_WARM_UP] * batch, bench.fresh(arm), limit=_WARM_UP_TOKENS)
    shared = {(arm, run): bench.fresh(arm) for arm in arms for run in range(num_runs)}
    rows: list[Row] = []
    total = sum(map(len, groups.values())) * len(arms) * num_runs
    with tqdm(total=total, unit="run", file=sys.stderr, disable=None) as progress:
        for suite, members in groups.items():
            trials: dict[Arm, list[list[Trial]]] = {arm: [] for arm in arms}
            for prompts in members:
                for arm in arms:
                    trials[arm].append([])
                for run in range(num_runs):
                    for arm in arms:
                        progress.set_description(f"{suite} {arm.label}")
                        trials[arm][-1].append(bench.run(arm, prompts, shared[arm, run]))
                        progress.update()
            rows += [summarise(suite, arm, trials[arm], trials[arms[0]]) for arm in arms]
    return rows


def _grouped(prompts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]
