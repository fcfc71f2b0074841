"""Records traces through the engine's own log-probabilities: no second way to run the model."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from engine.bench.arm import Arm
from engine.bench.bench import Bench
from engine.bench.trace import TOP_K, Trace
from engine.core import EngineCore
from engine.spec.drafter import Rows
from engine.types import EngineRequest, TokenLogprob


def record(bench: Bench, plain: Arm, suites: Mapping[str, Sequence[str]]) -> list[Trace]:
    """The greedy answer to every prompt by plain decoding, with the TOP_K best of each row."""
    total = sum(map(len, suites.values()))
    with tqdm(total=total, unit="prompt", file=sys.stderr, disable=None) as progress:
        traces = []
        for suite, prompts in suites.items():
            for prompt in prompts:
                progress.set_description(suite)
                traces.append(record_one(bench.core, suite, bench.request(plain, prompt)))
                progress.update()
    return traces


def record_one(core: EngineCore, suite: str, request: EngineRequest) -> Trace:
    """Run one request alone and keep what was said. Raises RuntimeError if the engine fails it."""
    sampling = replace(request.sampling, logprobs=TOP_K, prompt_logprobs=TOP_K)
    core.add(replace(request, sampling=sampling))
    said: list[TokenLogprob] = []
    answer: list[int] = []
    while core.has_work:
        for output in core.step().outputs:
            if output.error:
                raise RuntimeError(output.error)
            said += [entry for entry in output.prompt_logprobs or () if entry is not None]
            said += output.logprobs or ()
            answer += output.new_token_ids
    rows = Rows(
        np.array([[token for token, _ in entry.top] for entry in said], dtype=np.int64),
        np.array([[logprob for _, logprob in entry.top] for entry in said], dtype=np.float32),
    )
    prompt = request.prompt_token_ids
    return Trace(suite, prompt, tuple(answer), sampling.max_tokens, rows)
