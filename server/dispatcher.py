"""Between the engine's thread and the event loop: one call into the loop per engine step.

A request is known here from before the engine hears of it until its last output came, its time is
up or its client left, whichever is first; no other place remembers it, so nothing can leak.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from engine.api import EngineClient, EngineOutput, FinishReason, StepOutputs
from server.errors import ApiError, timed_out, unavailable
from server.job import Job
from server.mailbox import Mailbox
from server.metrics import Metrics
from server.queue_pace import QueuePace
from server.settings import ServerSettings

logger = logging.getLogger("treeline.http")


@dataclass(slots=True)
class _Sequence:
    """One sequence that has not ended. `num_queued`: its prompt tokens; 0 once it has output."""

    mailbox: Mailbox
    index: int
    num_queued: int


class _Paces:
    """How fast sequences end, and prompt tokens leave the queue, since the server was last idle."""

    def __init__(self) -> None:
        now = time.monotonic()
        self.sequences, self.tokens = QueuePace(now), QueuePace(now)


class Dispatcher:
    """Routes every output to the mailbox of its job. All methods run on the event loop."""

    def __init__(self, engine: EngineClient, metrics: Metrics, settings: ServerSettings) -> None:
        self._engine = engine
        self._metrics = metrics
        self._settings = settings
        self._waiting: dict[str, _Sequence] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # response id -> its timer
        self._num_queued_tokens = 0  # prompt tokens of sequences that have no output yet
        self._paces = _Paces()
        self._death: str | None = None
        self.is_draining = False

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

    def check_open(self, num_sequences: int = 1, num_tokens: int = 1) -> None:
        """Raises ApiError 503 unless so much more may wait now.

        An idle server takes any single request, so that none is refused for ever.
        """
        if self._death is not None:
            self._refuse("engine", "The engine has stopped.")
        if self.is_draining:
            self._refuse("draining", "The server is shutting down.")
        if not self._waiting:
            return
        most = self._engine.info.max_batch + self._settings.max_queued_requests
        if len(self._waiting) + num_sequences > most:
            ahead = len(self._waiting) - self._engine.info.max_batch
            seconds = self._paces.sequences.seconds_for(ahead, time.monotonic())
            self._refuse("queue_requests", "Too many requests are waiting.", seconds)
        if self._num_queued_tokens + num_tokens > self._settings.max_queued_tokens:
            seconds = self._paces.tokens.seconds_for(self._num_queued_tokens, time.monotonic())
            self._refuse("queue_tokens", "Too many prompt tokens are waiting.", seconds)

    def submit(self, job: Job) -> Mailbox:
        """Queue all sequences of a job, or none. Raises EngineDeadError, or ApiError 503 or 408.

        Its time, counted from its arrival, may end while it waits or runs: then its mailbox fails.
        """
        sizes = [len(request.prompt_token_ids) for request in job.requests]
        self.check_open(len(sizes), sum(sizes))
        mailbox = Mailbox()
        if not self._waiting:
            self._paces = _Paces()
        try:
            for index, (request, size) in enumerate(zip(job.requests, sizes, strict=True)):
                self._waiting[request.request_id] = _Sequence(mailbox, index, size)
                self._num_queued_tokens += size
                self._engine.add(request)
        except BaseException:
            self.release(job)
            raise
        if self._settings.request_seconds:
            gone = time.monotonic() - job.requests[0].arrival_time
            loop = asyncio.get_running_loop()
            self._deadlines[job.response_id] = loop.call_later(
                self._settings.request_seconds - gone, self._time_out, job, mailbox
            )
        return mailbox

    def release(self, job: Job) -> None:
        """Forget a job and abort what of it still runs. Synchronous and idempotent, because it
        runs where an `await` would be cancelled again."""
        if timer := self._deadlines.pop(job.response_id, None):
            timer.cancel()
        for request in job.requests:
            if self._forget(request.request_id):
                self._engine.abort(request.request_id)

    def drain(self) -> None:
        """Take nothing new from now on; what runs may end."""
        self.is_draining = True

    def give_up(self) -> None:
        """End all that still runs with an error, which their clients get."""
        for request_id in list(self._waiting):
            sequence = self._waiting[request_id]
            sequence.mailbox.fail(unavailable("The server shut down before the answer was whole."))
            self._forget(request_id)
            self._engine.abort(request_id)

    def _refuse(self, reason: str, message: str, seconds: int = 1) -> None:
        self._metrics.count_rejected(reason)
        raise unavailable(message, seconds)

    def _time_out(self, job: Job, mailbox: Mailbox) -> None:
        if any(request.request_id in self._waiting for request in job.requests):
            self._metrics.count_rejected("timeout")
            mailbox.fail(timed_out(self._settings.request_seconds))
        self.release(job)

    def _forget(self, request_id: str) -> bool:
        """Whether the sequence was still waiting."""
        sequence = self._waiting.pop(request_id, None)
        if sequence is not None:
            self._dequeue(sequence)
            self._paces.sequences.leave(1, time.monotonic())
        return sequence is not None

    def _dequeue(self, sequence: _Sequence) -> None:
        """The sequence has output, or will never have any."""
        if sequence.num_queued:
            self._num_queued_tokens -= sequence.num_queued
            self._paces.tokens.leave(sequence.num_queued, time.monotonic())
            sequence.num_queued = 0

    def _dispatch(self, step: StepOutputs, now: float) -> None:
        if step.dead is not None:
            self._bury(step.dead)  # before its requests' ends, which would not say why
        outputs = tuple(self._deliver(output) for output in step.outputs)
        # Last: a fault in it costs no client its answer.
        self._metrics.observe_step(replace(step, outputs=outputs), now)

    def _deliver(self, output: EngineOutput) -> EngineOutput:
        """Pass an output on. Returns it as it is counted: where the client has left before, an end
        that the engine came to meanwhile is no success."""
        if output.error is not None and output.finish_reason is not FinishReason.INVALID:
            logger.error("request %s failed: %s", output.request_id, output.error)
        sequence = self._waiting.get(output.request_id)
        if sequence is None:
            if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                return replace(output, finish_reason=FinishReason.ABORT)
            return output
        self._dequeue(sequence)
        if output.finish_reason is not None:
            self._forget(output.request_id)
        sequence.mailbox.put(sequence.index, output)
        return output

    def _bury(self, reason: str) -> None:
        logger.critical("the engine died: %s", reason)
        self._death = reason
        message = "The engine died while serving this request."
        for request_id, sequence in list(self._waiting.items()):
            sequence.mailbox.fail(ApiError(500, message, code="engine_dead"))
            self._forget(request_id)
