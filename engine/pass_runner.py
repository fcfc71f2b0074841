"""One pass of a step, made smaller wherever the device has too little memory for it.

A pass that fails has only written scratch rows, so it can be run again with less in it: first
without what is drafted, which can never change a token; then with ever shorter prompt chunks; in
the end without the youngest request, which is told to come back. The others never notice.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.drafting import Drafted, StepDrafts
from engine.errors import OverloadError, is_out_of_memory
from engine.model.run_request import RunRequest, RunResult
from engine.model.runner import ModelRunner
from engine.request import Request
from engine.scheduler import Scheduler, Work
from engine.spec.tree import TokenTree

log = logging.getLogger("treeline.engine")

RECOVERY_STEPS = 64  # passes that fit before half of what was cut is tried again


@dataclass(frozen=True, slots=True)
class StepPass:
    """What was run, what came of it (one result per part), and what it took."""

    drafted: list[Drafted]
    results: list[RunResult | None]
    draft_seconds: float
    forward_seconds: float
    num_memory_faults: int  # passes that failed before this one


class PassRunner:
    """Schedules, drafts and runs one pass per step, and remembers for a while what did not fit.

    `is_plain`: nothing is drafted. `room`: prompt tokens of a pass, all requests together.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        fail: Callable[[Request, Exception], None],
    ) -> None:
        """`fail` ends one request with an error."""
        self._scheduler = scheduler
        self._runner = runner
        self._fail = fail
        self._num_fitting = 0  # passes since the last change of what follows
        self.is_plain = False
        self.room = scheduler.prefill_chunk

    def run(self, drafts: StepDrafts) -> StepPass:
        """The largest pass that fits. Raises what the model raises unless memory was short."""
        num_faults = 0
        while True:
            begin = time.perf_counter()
            works = self._scheduler.schedule(min(self.room, self._scheduler.prefill_chunk))
            drafted = drafts.draft(works, is_plain=self.is_plain)
            drafting = time.perf_counter() - begin
            if not drafted:
                return StepPass([], [], drafting, 0.0, num_faults)
            try:
                results = self._runner.run([_part(work, tree) for work, tree in drafted])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                log.warning("a pass found too little memory: %s", str(error).partition("\n")[0])
            else:
                self._recover()
                return StepPass(
                    drafted, results, drafting, self._runner.forward_seconds, num_faults
                )
            num_faults += 1
            self._runner.free_memory()  # only now: the exception has let go of its tensors
            self._cut(drafted)

    def _cut(self, drafted: Sequence[Drafted]) -> None:
        """Leave out of the next pass what made this one large; at last the youngest request."""
        self._num_fitting = 0
        num_rows = sum(work.end - work.start for work, _ in drafted)
        num_decoding = sum(work.is_decoding for work, _ in drafted)
        if any(len(tree) > 1 for _, tree in drafted if tree):
            self.is_plain = True
        elif num_rows > len(drafted):
            self.room = max(1, (num_rows - num_decoding) // 2)
        else:
            request = drafted[-1][0].request
            self._fail(request, OverloadError("the device has no memory left for this request"))

    def _recover(self) -> None:
        self._num_fitting += 1
        if self._num_fitting < RECOVERY_STEPS:
            return
        self._num_fitting = 0
        if self.room < self._scheduler.prefill_chunk:
            self.room *= 2
        else:
            self.is_plain = False


def _part(work: Work, tree: TokenTree | None) -> RunRequest:
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
