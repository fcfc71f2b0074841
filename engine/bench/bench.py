"""Runs groups of prompts through the engine core and clocks them.

Tokens and forwards are counted by the engine. Everything that one arm learns is kept from the
others and from its own repetitions: each pass over the prompts starts with nothing that requests
share, as a server does.
"""

import copy
import dataclasses
import time
from collections.abc import Sequence
from functools import partial

from engine.bench.arm import Arm
from engine.bench.trial import Trial
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.spec.planner import Planner
from engine.spec.registry import Shared, build_drafter
from engine.text.tokenizer import Tokenizer
from engine.types import EngineRequest, SamplingParams, SpecStats


class Bench:
    """One engine. `is_raw`: prompts are not wrapped in the model's chat template."""

    def __init__(
        self,
        config: EngineConfig,
        core: EngineCore,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        eos_token_ids: frozenset[int],
        is_raw: bool = False,
    ) -> None:
        self._config = config
        self.core = core
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._eos_token_ids = eos_token_ids
        self._is_raw = is_raw
        self._cost = copy.deepcopy(core.planner.cost)
        self._bigrams = core.planner.bigrams
        self._num_requests = 0

    def fresh(self, arm: Arm) -> Shared:
        """What the requests of one pass by `arm` share: it knows the machine and has seen no text.

        What is slow to load is loaded here, off the clock. Raises ConfigError if it cannot be.
        """
        speculation = self._config.speculation
        planner = Planner(speculation.auto, copy.deepcopy(self._cost), self._bigrams)
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        shared = Shared(speculation, self._eos_token_ids, planner, encode)
        build_drafter(shared, arm.plan, seed=0)
        return shared

    def run(
        self,
        arm: Arm,
        prompts: Sequence[str],
        shared: Shared,
        limit: int | Sequence[int] | None = None,
        streams: int | None = None,
    ) -> Trial:
        """Decode the prompts together, each to `limit` tokens, or to its own, if given.

        `streams`: how many are there at once, the next one coming as one ends; None: all. At most
        `max_batch` of them run. Raises RuntimeError if the engine gives one up.
        """
        core = self.core
        core.share(shared)
        limits = limit if isinstance(limit, Sequence) else [limit] * len(prompts)
        requests = [
            self.request(arm, prompt, most) for prompt, most in zip(prompts, limits, strict=True)
        ]
        produced: dict[str, list[int]] = {request.request_id: [] for request in requests}
        firsts: dict[str, float] = {}
        stats, forward, num_steps, predicted, realised = SpecStats(), 0.0, 0, 0.0, 0
        begin = time.perf_counter()
        for request in requests[:streams]:
            core.add(request)
        coming = iter(requests[streams:] if streams else ())
        while core.has_work:
            step = core.step()
            num_steps += 1
            forward += step.forward_seconds
            if step.predicted_tokens:
                predicted += step.predicted_tokens
                realised += sum(counts.tokens for _, counts in step.spec)
            for output in step.outputs:
                produced[output.request_id] += output.new_token_ids
                firsts.setdefault(output.request_id, time.perf_counter() - begin)
                if output.error:
                    raise RuntimeError(f"{arm.label}: {output.error}")
                stats += output.stats or SpecStats()
                following = next(coming, None) if output.finish_reason is not None else None
                if following is not None:
                    core.add(following)
        seconds = time.perf_counter() - begin
        token_ids = tuple(tuple(tokens) for tokens in produced.values())
        first = tuple(firsts[request.request_id] for request in requests)
        return Trial(token_ids, stats, seconds, forward, num_steps, first, predicted, realised)

    def request(self, arm: Arm, prompt: str, limit: int | None = None) -> EngineRequest:
        """One user message as the engine takes it. Raises ConfigError if it fills the context."""
        token_ids = self.encode(prompt)
        room = self.core.max_model_len - len(token_ids)
        if room < 1:
            raise ConfigError(f"a prompt of {len(token_ids)} tokens leaves no room for an answer")
        max_tokens = min(limit or self._sampling.max_tokens, room)
        sampling = dataclasses.replace(self._sampling, max_tokens=max_tokens)
        self._num_requests += 1
        return EngineRequest(
            f"bench-{self._num_requests}", tuple(token_ids), sampling, arm.plan, time.monotonic()
        )

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a user message."""
        if self._is_raw or not self._tokenizer.has_chat_template:
            return self._tokenizer.encode(prompt)
        text = self._tokenizer.render_chat([{"role": "user", "content": prompt}])
        return self._tokenizer.encode(text, add_special_tokens=False)
