"""The step loop: admit, draft, run one packed forward pass, walk, commit, learn.

One step serves all running requests. What a request emits depends only on its own tokens, its
sampling rules and its seed; drafting and company decide how many tokens a step yields, never which.
"""

import logging
import time
from dataclasses import dataclass, field
from functools import partial

from engine.config import EngineConfig
from engine.drafting import StepDrafts
from engine.kv_slots import KvSlots, SlotGrant
from engine.model.run_request import RunResult
from engine.model.runner import ModelRunner
from engine.outputs import output_of
from engine.pass_runner import PassRunner
from engine.request import Request, RequestStatus
from engine.sampling import Sampler, token_logprob
from engine.scheduler import Scheduler, Work
from engine.spec.auto import Auto
from engine.spec.bigrams import Bigrams
from engine.spec.drafter import StepResult
from engine.spec.planner import Planner
from engine.spec.registry import Shared, build_drafter
from engine.spec.step_cost import StepCost
from engine.spec.tree import TokenTree
from engine.spec.walk import Walk
from engine.text.stop import StopScanner
from engine.text.tokenizer import Tokenizer
from engine.types import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SpecStats,
    StepOutputs,
)
from engine.verification import count, verify

log = logging.getLogger("treeline.engine")

ASSUMED_SLOPE = 0.02  # of a step per row, where nothing was measured


@dataclass(slots=True)
class _Step:
    """What one step collects on its way."""

    outputs: list[EngineOutput] = field(default_factory=list)
    spec: dict[str, SpecStats] = field(default_factory=dict)
    moves: list[tuple[int, int, int]] = field(default_factory=list)
    trees: list[tuple[str, int]] = field(default_factory=list)
    num_prompt_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Committed tokens of all requests."""
        return sum(stats.tokens for stats in self.spec.values())

    def count(self, request: Request, tree: TokenTree, outcome: Walk) -> None:
        """Add one request's counters to its own and to the step's."""
        stats = count(tree, outcome)
        request.stats += stats
        method = request.source.speculation.method
        known = self.spec.get(method)
        self.spec[method] = stats if known is None else known + stats
        self.trees.append((method, tree.num_draft_tokens))


class EngineCore:
    """Requests in, tokens out. Lives on one thread and owns the scheduler, runner and all state."""

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        step_cost: StepCost | None = None,
        bigrams: Bigrams | None = None,
    ) -> None:
        """`step_cost`: as measured; None starts from an assumption that real steps correct.
        `bigrams`: what the model says after tokens that stand alone, if it was asked."""
        self._config = config
        self._runner = runner
        self._info = info
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(info.eos_token_ids)
        slots = KvSlots(config.max_batch, reuse_prefixes=config.prefix_reuse)
        self._scheduler = Scheduler(slots, config.prefill_chunk)
        self._passes = PassRunner(self._scheduler, runner, self._fail)
        cost = step_cost or StepCost.sloped(ASSUMED_SLOPE)
        self.planner = Planner(config.speculation.auto, cost, bigrams)
        encode = partial(tokenizer.encode, add_special_tokens=False) if tokenizer else None
        self._shared = Shared(config.speculation, self._eos_token_ids, self.planner, encode)
        self._requests: dict[str, Request] = {}
        self._samplers: dict[str, Sampler] = {}
        self._ended: list[EngineOutput] = []  # ends outside a step: aborts

    def share(self, shared: Shared) -> None:
        """Let later requests share this instead of what earlier ones did. Only without work."""
        assert not self.has_work, "requests still use what they share"
        self._shared, self.planner = shared, shared.planner

    @property
    def max_model_len(self) -> int:
        """Tokens of a sequence, prompt included."""
        return self._info.max_model_len

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._scheduler.waiting)

    @property
    def num_kv_tokens(self) -> int:
        """Committed rows of all running requests."""
        return sum(request.committed_len for request in self._scheduler.running)

    @property
    def num_cache_tokens(self) -> int:
        """Tokens of ended requests' answers that later ones draft from."""
        return len(self.planner.cache) if self.planner.cache is not None else 0

    def state_sizes(self) -> dict[str, int]:
        """Entries that drafters keep, by method: those of running requests and what is shared."""
        sizes = self._shared.state_sizes()
        for request in self._scheduler.running:
            if request.drafter is not None:
                method = request.source.speculation.method
                sizes[method] = sizes.get(method, 0) + request.drafter.state_size()
        return sizes

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests or self._ended)

    def add(self, source: EngineRequest) -> None:
        """Queue a request that the server has validated."""
        if source.request_id in self._requests:
            raise ValueError(f"request id {source.request_id} is in use")
        sampling = source.sampling
        drafter = build_drafter(
            self._shared, source.speculation, sampling.seed, source.prediction_token_ids
        )
        scanner = None
        if sampling.stop:
            if self._tokenizer is None:
                raise ValueError("stop strings need a tokenizer")
            scanner = StopScanner(self._tokenizer, sampling.stop, sampling.text)
        matcher = None
        if sampling.grammar is not None:
            if self._tokenizer is None:
                raise ValueError("a grammar needs a tokenizer")
            grammars = self._tokenizer.grammars(self._info.vocab_size, self._info.eos_token_ids)
            matcher = grammars.matcher(sampling.grammar)
            if isinstance(drafter, Auto):
                drafter.constrain(matcher)
        request = Request(source, drafter, scanner, self._eos_token_ids, self._info.max_model_len)
        sampler = Sampler(
            sampling,
            source.prompt_token_ids,
            self._eos_token_ids | frozenset(sampling.stop_token_ids),
            self._info.vocab_size,
            self._runner.device,
            matcher=matcher,
        )
        self._requests[source.request_id] = request
        self._samplers[source.request_id] = sampler
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request early. Unknown or ended ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            request.finish(FinishReason.ABORT)
            self._end(request)

    def drain_ended(self) -> tuple[EngineOutput, ...]:
        """Ends that happened outside a step, each once."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def step(self) -> StepOutputs:
        """Serve every running request once."""
        grants = self._admit()
        drafts = StepDrafts(self.planner, self._fail)
        done = self._passes.run(drafts)
        drafted, forward, drafting = done.drafted, done.forward_seconds, done.draft_seconds
        step = _Step()
        begin = time.perf_counter()
        for (work, tree), result in zip(drafted, done.results, strict=True):
            self._settle(work, tree, result, step)
        self._runner.kv.move(step.moves)
        walking = time.perf_counter() - begin
        if self._config.check_invariants:
            self.check_invariants()
        return StepOutputs(
            outputs=self.drain_ended() + tuple(step.outputs),
            spec=tuple(step.spec.items()),
            trees=tuple(step.trees),
            num_prefix_queries=sum(request.num_prompt_tokens for request, _ in grants),
            num_prefix_hits=sum(grant.num_cached for _, grant in grants),
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_prompt_tokens=step.num_prompt_tokens,
            draft_seconds=drafting,
            forward_seconds=forward,
            walk_seconds=walking,
            num_rows=sum(w.end - w.start + (len(t) - 1 if t else 0) for w, t in drafted),
            price=self.planner.price,
            num_memory_faults=done.num_memory_faults,
            predicted_tokens=drafts.learn(drafted, step.num_tokens, forward, drafting, walking),
        )

    def check_invariants(self) -> None:
        """The books agree: scheduler, slots, and one live entry per request."""
        self._scheduler.check_invariants()
        known = {r.request_id for r in self._scheduler.running}
        known |= {r.request_id for r in self._scheduler.waiting}
        assert known == set(self._requests) == set(self._samplers), "a request is lost or left over"

    def _admit(self) -> list[tuple[Request, SlotGrant]]:
        admitted = self._scheduler.admit()
        for request, grant in admitted:
            request.scheduled_time = time.monotonic()
            if grant.copy_from is not None:
                self._runner.kv.copy_prefix(grant.copy_from, grant.slot, grant.num_cached)
            self._scheduler.slots.commit(grant.slot, grant.num_cached)
            if request.drafter is not None:
                try:
                    request.drafter.begin(request.token_ids)
                except Exception as error:
                    self._fail(request, error)
        return admitted

    def _settle(
        self, work: Work, tree: TokenTree | None, result: RunResult | None, step: _Step
    ) -> None:
        """Book one request's rows. A fault in them ends this request alone."""
        request = work.request
        step.num_prompt_tokens += max(0, min(work.end, request.num_prompt_tokens) - work.start)
        if request.status is not RequestStatus.RUNNING:
            return
        try:
            if result is not None:
                self._observe_prefix(work, result)
            if tree is None or result is None:
                self._commit(request, work.end)
            else:
                self._decode(request, tree, result, step)
        except Exception as error:
            self._fail(request, error)

    def _observe_prefix(self, work: Work, result: RunResult) -> None:
        request = work.request
        if result.prefix_rows is not None and len(result.prefix_rows.token_ids):
            assert request.drafter is not None
            request.drafter.observe_prompt(work.start, result.prefix_rows)
        if result.prefix_logits is not None:
            count = request.source.sampling.prompt_logprobs or 0
            following = request.token_ids[work.start + 1 :]
            for logits, token_id in zip(result.prefix_logits, following, strict=False):
                request.prompt_logprobs.append(token_logprob(logits, token_id, count))

    def _decode(self, request: Request, tree: TokenTree, result: RunResult, step: _Step) -> None:
        """Walk the tree, commit the path, and emit."""
        assert request.slot is not None
        known = len(request.token_ids)  # also the row where the anchor's successor belongs
        sampler = self._samplers[request.request_id]
        verified = verify(request, sampler, tree, result, self._info.vocab_size)
        path, token_ids = verified.walk.path, verified.walk.token_ids
        request.last_token_time = time.monotonic()
        request.first_token_time = request.first_token_time or request.last_token_time
        step.moves += [
            (request.slot, known - 1 + node, known + place)
            for place, node in enumerate(path)
            if node != place + 1
        ]
        self._commit(request, known + len(path))
        step.count(request, tree, verified.walk)
        if verified.finish_reason is not None:
            request.finish(verified.finish_reason)
            self._release(request)
        elif request.drafter is not None:
            request.drafter.observe(StepResult(tree, result.rows, path, token_ids))
        is_first = known == request.num_prompt_tokens
        step.outputs.append(output_of(request, token_ids, verified.logprobs, is_first=is_first))

    def _commit(self, request: Request, committed_len: int) -> None:
        assert request.slot is not None
        request.committed_len = committed_len
        self._scheduler.slots.commit(request.slot, committed_len)

    def _fail(self, request: Request, error: Exception) -> None:
        """End one request with an error that is its own; the others go on."""
        if request.status is not RequestStatus.FINISHED:
            request.fail(error)
        if request.finish_reason is not FinishReason.INVALID:
            log.error("request %s failed", request.request_id, exc_info=error)
        if request.request_id in self._requests:
            self._end(request)

    def _release(self, request: Request) -> None:
        """Take an ended request out of all books."""
        self._scheduler.remove(request)
        if isinstance(request.drafter, Auto):
            request.drafter.finish()
        del self._requests[request.request_id], self._samplers[request.request_id]

    def _end(self, request: Request) -> None:
        """Release a request that ended outside a step's walk, and say so with the next outputs."""
        self._release(request)
        self._ended.append(output_of(request))
