"""Slots and scheduler as a state machine: add, step, abort and finish in any order."""

import random

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.kv_slots import KvSlots, common_prefix_len
from engine.request import Request, RequestStatus
from engine.scheduler import Scheduler
from engine.types import EngineRequest, FinishReason, SamplingParams, SpeculationPlan

CHUNK, SLOTS, MAX_LEN = 7, 3, 64


def make_request(number: int, prompt: list[int], max_tokens: int) -> Request:
    params = SamplingParams(max_tokens=max_tokens, seed=0)
    plan = SpeculationPlan("off", 4, 4, 8, 8)
    source = EngineRequest(f"r{number}", tuple(prompt), params, plan, 0.0)
    return Request(source, None, None, frozenset({0}), MAX_LEN)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(KvSlots(SLOTS), CHUNK)
        self.live: list[Request] = []
        self.rows: list[list[int]] = [[] for _ in range(SLOTS)]  # what each slot's rows stand for
        self.count = 0
        self.order: list[str] = []
        self.admitted: list[str] = []

    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=30),
        max_tokens=st.integers(1, 9),
    )
    def add(self, prompt: list[int], max_tokens: int) -> None:
        request = make_request(self.count, prompt, max_tokens)
        self.count += 1
        self.live.append(request)
        self.order.append(request.request_id)
        self.scheduler.add(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        request.finish(reason)
        self.scheduler.remove(request)
        self.live.remove(request)
        if request.request_id not in self.admitted:
            self.order.remove(request.request_id)

    @rule(pick=st.randoms())
    def abort(self, pick: random.Random) -> None:
        if self.live:
            self.end(pick.choice(self.live), FinishReason.ABORT)

    @rule(pick=st.randoms())
    def step(self, pick: random.Random) -> None:
        for request, grant in self.scheduler.admit():
            self.admitted.append(request.request_id)
            if grant.copy_from is not None:
                copied = self.rows[grant.copy_from][: grant.num_cached]
                self.rows[grant.slot] = copied
            self.scheduler.slots.commit(grant.slot, grant.num_cached)
            held = self.rows[grant.slot][: grant.num_cached]
            assert held == request.token_ids[: grant.num_cached], "a wrong prefix was granted"
            assert grant.num_cached < len(request.token_ids)
        works = self.scheduler.schedule()
        prompt_rows = sum(w.end - w.start for w in works if w.end - w.start > 1)
        assert prompt_rows <= CHUNK
        assert len({w.request.request_id for w in works}) == len(works)
        if self.live:
            assert works, "there is work but nothing runs"
        for work in works:
            self.settle(work, pick)

    def settle(self, work, pick: random.Random) -> None:
        request = work.request
        assert request.slot is not None
        row = self.rows[request.slot][: work.start] + request.token_ids[work.start : work.end]
        committed_len = work.end
        reason = None
        if work.is_decoding:
            for accepted in range(pick.randint(1, 4)):
                if accepted:
                    row.append(request.token_ids[-1])
                    committed_len += 1
                reason = request.commit(pick.randint(0, 3))
                if reason:
                    break
        self.rows[request.slot] = row
        request.committed_len = committed_len
        self.scheduler.slots.commit(request.slot, committed_len)
        if reason:
            assert len(request.token_ids) <= request.num_prompt_tokens + 9
            self.end(request, reason)

    @invariant()
    def books_agree(self) -> None:
        self.scheduler.check_invariants()
        assert self.admitted == self.order[: len(self.admitted)], "not first come, first served"
        for request in self.live:
            assert request.status is not RequestStatus.FINISHED


Machine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
TestMachine = Machine.TestCase


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    slow = 0
    while slow < min(len(a), len(b)) and a[slow] == b[slow]:
        slow += 1
    assert common_prefix_len(a, b) == slow
