"""Who computes what in the next step: admission by slots, then prompt chunks beside decode trees.

Ints only. First come, first served; decode requests always run, prompts share what one step may
hold, so that a long prompt delays its neighbours by at most one chunk per step.
"""

from collections import deque
from dataclasses import dataclass

from engine.kv_slots import KvSlots, SlotGrant
from engine.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Work:
    """One request's part in a step: the known tokens [start, end) whose KV is computed now.

    `is_decoding`: the last known token is among them, so a tree may hang from it and the step
    yields tokens.
    """

    request: Request
    start: int
    end: int
    is_decoding: bool


class Scheduler:
    """Owns the waiting queue, the running list and the slots' accounting."""

    def __init__(self, slots: KvSlots, prefill_chunk: int) -> None:
        self.slots = slots
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request behind those that came before."""
        self.waiting.append(request)

    def admit(self) -> list[tuple[Request, SlotGrant]]:
        """Move waiting requests into free slots, in order."""
        admitted = []
        while self.waiting and self.slots.num_free:
            request = self.waiting.popleft()
            max_cached = 0 if request.wants_prompt_rows else len(request.token_ids) - 1
            grant = self.slots.take(request.request_id, request.token_ids, max_cached)
            request.slot = grant.slot
            request.committed_len = request.num_cached_tokens = grant.num_cached
            request.to(RequestStatus.RUNNING)
            self.running.append(request)
            admitted.append((request, grant))
        return admitted

    def schedule(self, room: int | None = None) -> list[Work]:
        """The next step's work, one entry per request that takes part. Changes nothing.

        `room`: prompt tokens of all of them together; None: as configured.
        """
        room = self.prefill_chunk if room is None else room
        work = []
        for request in self.running:
            start, known = request.committed_len, len(request.token_ids)
            if known - start == 1:
                work.append(Work(request, start, known, is_decoding=True))
                continue
            end = min(known, start + room)
            if end > start:
                room -= end - start
                work.append(Work(request, start, end, is_decoding=end == known))
        return work

    def remove(self, request: Request) -> None:
        """Take an ended request out of wherever it is, and free its slot."""
        if request.slot is None:
            self.waiting.remove(request)
            return
        self.running.remove(request)
        self.slots.release(request.slot, request.request_id)
        request.slot = None

    def check_invariants(self) -> None:
        """Slots belong to exactly the running requests, and lengths agree."""
        self.slots.check_invariants()
        owners = {r.slot: r.request_id for r in self.running}
        assert owners == self.slots.owners, "slots and running requests disagree"
        for request in self.running:
            assert request.status is RequestStatus.RUNNING, "a running request is not RUNNING"
            assert request.committed_len < len(request.token_ids), "no anchor is left to compute"
        for request in self.waiting:
            assert request.slot is None, "a waiting request owns a slot"
            assert request.status is RequestStatus.WAITING, "a waiting request is not WAITING"
