"""The step loop: admit, draft, run one packed forward pass, walk, commit, learn.

One step serves all running requests. What a request emits depends only on its own tokens, its
sampling rules and its seed; drafting and company decide how many tokens a step yields, never which.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.config import EngineConfig
from engine.kv_slots import KvSlots, SlotGrant
from engine.model.run_request import RunRequest, RunResult
from engine.model.runner import ModelRunner
from engine.request import Request, RequestStatus
from engine.sampling import Sampler, token_logprob
from engine.scheduler import Scheduler, Work
from engine.spec.auto import Auto
from engine.spec.drafter import StepResult
from engine.spec.planner import Planner
from engine.spec.registry import Shared, build_drafter
from engine.spec.step_cost import StepCost
from engine.spec.tree import TokenTree
from engine.spec.walk import Walk, walk
from engine.text.stop import StopScanner
from engine.text.tokenizer import Tokenizer
from engine.types import (
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestTimes,
    SpecStats,
    StepOutputs,
    TokenLogprob,
)

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


class EngineCore:
    """Requests in, tokens out. Lives on one thread and owns the scheduler, runner and all state."""

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        step_cost: StepCost | None = None,
    ) -> None:
        """`step_cost`: as measured; None starts from an assumption that real steps correct."""
        self._config = config
        self._runner = runner
        self._info = info
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(info.eos_token_ids)
        slots = KvSlots(config.max_batch, reuse_prefixes=config.prefix_reuse)
        self._scheduler = Scheduler(slots, config.prefill_chunk)
        self.planner = Planner(config.speculation.auto, step_cost or StepCost.sloped(ASSUMED_SLOPE))
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
            scanner = StopScanner(self._tokenizer, sampling.stop, sampling.skip_special_tokens)
        matcher = None
        if sampling.grammar is not None:
            if self._tokenizer is None:
                raise ValueError("a grammar needs a tokenizer")
            grammars = self._tokenizer.grammars(self._info.vocab_size, self._info.eos_token_ids)
            matcher = grammars.matcher(sampling.grammar)
        request = Request(source, drafter, scanner, self._eos_token_ids, self._info.max_model_len)
        self._requests[source.request_id] = request
        self._samplers[source.request_id] = Sampler(
            sampling,
            source.prompt_token_ids,
            self._eos_token_ids | frozenset(sampling.stop_token_ids),
            self._info.vocab_size,
            self._runner.device,
            matcher=matcher,
        )
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request early. Unknown or ended ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            request.finish(FinishReason.ABORT)
            self._ended.append(self._release(request))

    def fail_all(self, error: str) -> None:
        """End every request with an error, without touching the device again."""
        for request in list(self._requests.values()):
            if request.status is not RequestStatus.FINISHED:
                request.finish(FinishReason.ERROR, error=error)
            self._ended.append(self._release(request))

    def drain_ended(self) -> tuple[EngineOutput, ...]:
        """Ends that happened outside a step, each once."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def step(self) -> StepOutputs:
        """Serve every running request once."""
        grants = self._admit()
        begin = time.perf_counter()
        works = self._scheduler.schedule()
        drafted = self._draft_all(works)
        drafting = time.perf_counter() - begin
        step = _Step()
        forward = 0.0
        begin = time.perf_counter()
        if drafted:
            results = self._runner.run([self._part(work, tree) for work, tree in drafted])
            forward = self._runner.forward_seconds
            for (work, tree), result in zip(drafted, results, strict=True):
                self._settle(work, tree, result, step)
            self._runner.kv.move(step.moves)
        walking = time.perf_counter() - begin - forward
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
            predicted_tokens=self._learn_costs(drafted, step, forward, drafting),
        )

    def _learn_costs(
        self,
        drafted: list[tuple[Work, TokenTree | None]],
        step: _Step,
        forward: float,
        drafting: float,
    ) -> float:
        """Tell the planner what a step took that was its own; what it had expected of its requests.

        Steps with prompt chunks or other methods say nothing about the planner's trees.
        """
        priced = sum(isinstance(work.request.drafter, Auto) for work, tree in drafted if tree)
        if not priced:
            return 0.0
        if priced == len(drafted) and all(work.end - work.start == 1 for work, _ in drafted):
            rows = sum(len(tree) for _, tree in drafted if tree)
            tokens = sum(stats.tokens for _, stats in step.spec.items())
            self.planner.observe(tokens, rows, forward, drafting)
        return self.planner.predicted_tokens

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

    def _draft_all(self, works: list[Work]) -> list[tuple[Work, TokenTree | None]]:
        """Each work with its tree. Priced drafters share what the others leave, at one price."""
        priced = [
            (work.request.drafter, work.request.limits())
            for work in works
            if isinstance(work.request.drafter, Auto)
            and work.is_decoding
            and not work.request.is_complete
        ]
        own = {id(drafter) for drafter, _ in priced}
        trees = {
            id(work): self._draft(work) for work in works if id(work.request.drafter) not in own
        }
        if priced:
            rows = sum(work.end - work.start for work in works) - len(priced)
            rows += sum(len(tree) - 1 for found in trees.values() for tree in found if tree)
            try:
                self.planner.plan(priced, rows)
            except Exception as error:  # the request at fault fails in its own draft
                log.error("the step's plan failed", exc_info=error)
        return [
            (work, tree)
            for work in works
            for tree in (trees[id(work)] if id(work) in trees else self._draft(work))
        ]

    def _draft(self, work: Work) -> list[TokenTree | None]:
        """The work's tree as a list of one; empty if drafting failed and ended the request."""
        request = work.request
        if not work.is_decoding:
            return [None]
        if request.drafter is None or request.is_complete:
            return [TokenTree.anchored(request.token_ids[-1])]
        try:
            return [request.drafter.draft(request.limits())]
        except Exception as error:
            self._fail(request, error)
            return []

    def _part(self, work: Work, tree: TokenTree | None) -> RunRequest:
        request = work.request
        assert request.slot is not None
        end = work.end - 1 if tree else work.end
        return RunRequest(
            slot=request.slot,
            committed_len=work.start,
            prefix=request.token_ids[work.start : end],
            tree=tree,
            needs=request.needs,
            wants_prefix_logits=request.wants_prompt_rows and work.end <= request.num_prompt_tokens,
        )

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
        now = time.monotonic()
        logprobs: list[TokenLogprob] = []
        known = len(request.token_ids)
        reason: FinishReason | None = FinishReason.LENGTH
        outcome = Walk([], [])
        if not request.is_complete:
            outcome, reason = self._walk(request, tree, result, logprobs)
        request.first_token_time = request.first_token_time or now
        request.last_token_time = now
        assert request.slot is not None
        first = known  # row of the anchor's first successor
        for place, node in enumerate(outcome.path):
            source = known - 1 + node
            if source != first + place:
                step.moves.append((request.slot, source, first + place))
        self._commit(request, known + len(outcome.path))
        self._count(request, tree, outcome, step)
        if reason is not None:
            request.finish(reason)
            step.outputs.append(self._release(request, outcome.token_ids, logprobs, known))
            return
        if request.drafter is not None:
            request.drafter.observe(StepResult(tree, result.rows, outcome.path, outcome.token_ids))
        step.outputs.append(self._output(request, outcome.token_ids, logprobs, known))

    def _walk(
        self, request: Request, tree: TokenTree, result: RunResult, logprobs: list[TokenLogprob]
    ) -> tuple[Walk, FinishReason | None]:
        sampler = self._samplers[request.request_id]
        wanted = request.source.sampling.logprobs
        reason: FinishReason | None = None

        def draw(node: int) -> int:
            if result.argmax[node] == self._info.vocab_size:
                raise ArithmeticError("the model gave NaN logits")
            if sampler.is_argmax:
                token_id = result.argmax[node]
            else:
                token_id = sampler.draw(result.logits[node], len(request.token_ids))
            if wanted is not None:
                logprobs.append(token_logprob(result.logits[node], token_id, wanted))
            return token_id

        def is_final(token_id: int) -> bool:
            nonlocal reason
            sampler.observe(token_id)
            reason = request.commit(token_id)
            return reason is not None

        return walk(tree, draw, is_final), reason

    def _commit(self, request: Request, committed_len: int) -> None:
        assert request.slot is not None
        request.committed_len = committed_len
        self._scheduler.slots.commit(request.slot, committed_len)

    def _count(self, request: Request, tree: TokenTree, outcome: Walk, step: _Step) -> None:
        is_hit, tokens = tree.num_draft_tokens > 0, len(outcome.token_ids)
        stats = SpecStats(
            steps=1,
            drafts=int(is_hit),
            draft_tokens=tree.num_draft_tokens,
            explored_tokens=tree.num_explored_tokens,
            accepted_tokens=len(outcome.path),
            hit_tokens=tokens if is_hit else 0,
            tokens=tokens,
            accepted_per_depth=(1,) * len(outcome.path),
        )
        request.stats += stats
        method = request.source.speculation.method
        step.spec[method] = step.spec.get(method, SpecStats()) + stats
        step.trees.append((method, tree.num_draft_tokens))

    def _fail(self, request: Request, error: Exception) -> None:
        """End one request with an error that is its own; the others go on."""
        log.error("request %s failed", request.request_id, exc_info=error)
        if request.status is not RequestStatus.FINISHED:
            request.finish(FinishReason.ERROR, error=f"{type(error).__name__}: {error}")
        if request.request_id in self._requests:
            self._ended.append(self._release(request))

    def _output(
        self,
        request: Request,
        token_ids: Sequence[int],
        logprobs: list[TokenLogprob],
        known: int,
    ) -> EngineOutput:
        wants = request.source.sampling
        is_first = known == request.num_prompt_tokens
        return EngineOutput(
            request_id=request.request_id,
            new_token_ids=tuple(token_ids),
            logprobs=tuple(logprobs) if wants.logprobs is not None else None,
            prompt_logprobs=(
                tuple(request.prompt_logprobs)
                if wants.prompt_logprobs is not None and is_first
                else None
            ),
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=request.error,
            num_cached_tokens=request.num_cached_tokens,
            stats=request.stats if request.finish_reason else None,
            times=self._times(request) if request.finish_reason else None,
        )

    def _release(
        self,
        request: Request,
        token_ids: Sequence[int] = (),
        logprobs: list[TokenLogprob] | None = None,
        known: int = -1,
    ) -> EngineOutput:
        """Take an ended request out of all books and make its terminal output."""
        self._scheduler.remove(request)
        if isinstance(request.drafter, Auto):
            request.drafter.finish()
            request.stats += _prediction_stats(request)
        del self._requests[request.request_id], self._samplers[request.request_id]
        return self._output(request, token_ids, logprobs or [], known)

    @staticmethod
    def _times(request: Request) -> RequestTimes | None:
        if not request.scheduled_time:
            return None
        return RequestTimes(
            request.source.arrival_time,
            request.scheduled_time,
            request.first_token_time,
            request.last_token_time,
        )


def _prediction_stats(request: Request) -> SpecStats:
    """What became of the client's prediction, if one was given."""
    prediction = request.source.prediction_token_ids
    source = request.drafter.prediction if isinstance(request.drafter, Auto) else None
    if source is None:  # no prediction, or the request never ran
        return SpecStats(rejected_prediction_tokens=len(prediction))
    return SpecStats(
        accepted_prediction_tokens=source.num_accepted,
        rejected_prediction_tokens=source.num_rejected,
    )
