"""Between the engine's thread and the event loop: one call into the loop per engine step.

A request is known here from before the engine hears of it until its last output came or its client
left, whichever is first; no other place remembers it, so nothing can leak.
"""

import asyncio
import logging
import time

from engine.api import EngineClient, EngineOutput, StepOutputs
from server.errors import ApiError, unavailable
from server.job import Job
from server.mailbox import Mailbox
from server.metrics import Metrics

logger = logging.getLogger("treeline.http")


class Dispatcher:
    """Routes every output to the mailbox of its job. All methods run on the event loop."""

    def __init__(self, engine: EngineClient, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._waiting: dict[str, tuple[Mailbox, int]] = {}
        self._death: str | None = None

    @property
    def num_waiting(self) -> int:
        """Sequences whose end has not come."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the engine and receive its steps on the running loop."""
        loop = asyncio.get_running_loop()

        def on_step(step: StepOutputs) -> None:  # on the engine's thread
            loop.call_soon_threadsafe(self._dispatch, step, time.monotonic())

        self._engine.start(on_step)

    def submit(self, job: Job) -> Mailbox:
        """Queue all sequences of a job, or none. Raises EngineDeadError, or ApiError 503."""
        if self._death is not None:
            raise unavailable("The engine has stopped.")
        mailbox = Mailbox()
        try:
            for index, request in enumerate(job.requests):
                self._waiting[request.request_id] = (mailbox, index)
                self._engine.add(request)
        except BaseException:
            self.release(job)
            raise
        return mailbox

    def release(self, job: Job) -> None:
        """Forget a job and abort what of it still runs. Synchronous and idempotent, because it
        runs where an `await` would be cancelled again."""
        for request in job.requests:
            if self._waiting.pop(request.request_id, None) is not None:
                self._engine.abort(request.request_id)

    def _dispatch(self, step: StepOutputs, now: float) -> None:
        self._metrics.observe_step(step, now)
        for output in step.outputs:
            self._deliver(output)
        if step.dead is not None:
            self._bury(step.dead)

    def _deliver(self, output: EngineOutput) -> None:
        if output.error is not None:
            logger.error("request %s failed: %s", output.request_id, output.error)
        entry = self._waiting.get(output.request_id)
        if entry is None:
            return  # its client left before
        if output.finish_reason is not None:
            del self._waiting[output.request_id]
        mailbox, index = entry
        mailbox.put(index, output)

    def _bury(self, reason: str) -> None:
        logger.critical("the engine died: %s", reason)
        self._death = reason
        waiting, self._waiting = self._waiting, {}
        message = "The engine died while serving this request."
        for mailbox, _ in waiting.values():
            mailbox.fail(ApiError(500, message, code="engine_dead"))
