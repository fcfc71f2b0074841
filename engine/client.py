"""The border between the server and the engine: a protocol of plain data, and its threaded form.

The server may call `add`, `abort` and `status` from any thread; the engine calls back once per
step. Nothing else crosses, so a process could stand behind the same protocol.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from engine.config import EngineConfig
from engine.errors import EngineDeadError, RequestError, TreelineError, is_out_of_memory
from engine.memory import TIDY_SECONDS, tidy
from engine.types import EngineInfo, EngineOutput, EngineRequest, FinishReason, StepOutputs

if TYPE_CHECKING:  # torch and transformers take seconds to import; a bad YAML must fail at once
    from engine.core import EngineCore
    from engine.text.tokenizer import Tokenizer

log = logging.getLogger("treeline.engine")

OnStep = Callable[[StepOutputs], None]

COPY_SECONDS = 1.0  # between two copies of costs and sizes for `status`, while there is work


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How the engine is doing now."""

    is_alive: bool
    is_draining: bool
    num_running: int
    num_waiting: int
    seconds_since_step: float  # since the loop last advanced; small while idle too
    error: str | None = None
    num_kv_tokens: int = 0  # committed rows of running requests, of max_batch * max_model_len
    num_cache_tokens: int = 0  # of other requests' answers, kept to draft from
    step_cost: tuple[tuple[int, float], ...] = ()  # (rows, seconds) of a forward pass
    drafter_entries: tuple[tuple[str, int], ...] = ()  # (method, entries that its drafters keep)


class EngineClient(Protocol):
    """What the server needs of an engine."""

    @property
    def info(self) -> EngineInfo:
        """Facts about the loaded model."""
        ...

    def start(self, on_step: OnStep) -> None:
        """Begin stepping. `on_step` is called on the engine's thread, once per step."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Queue a valid request. Its outputs arrive through `on_step` and end exactly once.

        Raises EngineDeadError if the engine has ended.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Ask for an early end. Synchronous, idempotent, harmless for unknown ids.
        The request ends with FinishReason.ABORT unless it ended before."""
        ...

    def status(self) -> EngineStatus:
        """Liveness and load, without waiting for the engine."""
        ...

    def shutdown(self, timeout: float) -> None:
        """Finish what runs for up to `timeout` seconds, abort the rest, stop the thread."""
        ...


@dataclass(frozen=True, slots=True)
class _Add:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class _Wake:
    """Makes a waiting loop look at its flags."""


BuildCore = Callable[[], "tuple[EngineCore, EngineInfo]"]


class ThreadedEngine:
    """An EngineCore on a thread of its own, which also builds and loads everything it uses.

    Any exception in the loop is the end: every waiting request fails once, and the engine stays
    dead, so that the process can end with a non-zero code and be restarted.
    """

    def __init__(self, build: BuildCore) -> None:
        """Load in the engine's thread and wait for it. Raises what `build` raises."""
        self._build = build
        self._inbox: SimpleQueue[_Add | _Abort | _Wake] = SimpleQueue()
        self._on_step: OnStep = lambda _: None
        self._loaded = threading.Event()
        self._started = threading.Event()
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._load_error: BaseException | None = None
        self._error: str | None = None
        self._info: EngineInfo | None = None
        self._load_counts = (0, 0)
        self._memory_counts = (0, 0)  # KV tokens, cached tokens
        self._step_cost: tuple[tuple[int, float], ...] = ()
        self._drafter_entries: tuple[tuple[str, int], ...] = ()
        self._copy_time = -math.inf
        self._pending: set[str] = set()  # added, not yet ended; guarded by _lock
        self._lock = threading.Lock()
        self._beat = self._tidied = time.monotonic()
        self._thread = threading.Thread(target=self._main, name="treeline-engine", daemon=True)
        self._thread.start()
        self._loaded.wait()
        if self._load_error is not None:
            raise self._load_error

    @property
    def info(self) -> EngineInfo:
        """Facts about the loaded model."""
        assert self._info is not None
        return self._info

    def start(self, on_step: OnStep) -> None:
        """Begin stepping; `on_step` is called on the engine's thread."""
        self._on_step = on_step
        self._started.set()

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises EngineDeadError if the engine has ended or is stopping."""
        with self._lock:
            if self._error is not None or self._draining.is_set():
                raise EngineDeadError(self._error or "the engine is shutting down")
            self._pending.add(request.request_id)
        self._inbox.put(_Add(request))

    def abort(self, request_id: str) -> None:
        """Ask for an early end; harmless for unknown ids."""
        self._inbox.put(_Abort(request_id))

    def status(self) -> EngineStatus:
        """Liveness and load."""
        running, waiting = self._load_counts
        kv_tokens, cache_tokens = self._memory_counts
        return EngineStatus(
            is_alive=self._error is None and self._thread.is_alive(),
            is_draining=self._draining.is_set(),
            num_running=running,
            num_waiting=waiting,
            seconds_since_step=time.monotonic() - self._beat,
            error=self._error,
            num_kv_tokens=kv_tokens,
            num_cache_tokens=cache_tokens,
            step_cost=self._step_cost,
            drafter_entries=self._drafter_entries,
        )

    def shutdown(self, timeout: float) -> None:
        """Take nothing new, let running requests end for `timeout` seconds, abort the rest."""
        self._draining.set()
        deadline = time.monotonic() + timeout
        while self._pending and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        self._started.set()
        self._inbox.put(_Wake())
        self._thread.join()

    def _main(self) -> None:
        try:
            core, self._info = self._build()
        except BaseException as error:
            self._load_error = error
            return
        finally:
            self._loaded.set()
        self._started.wait()
        try:
            self._loop(core)
        except BaseException as error:
            log.critical("the engine has died", exc_info=error)
            self._die(f"{type(error).__name__}: {error}")

    def _loop(self, core: "EngineCore") -> None:
        while not self._stopping.is_set():
            self._drain_inbox(core, may_wait=True)
            self._beat = time.monotonic()
            if core.has_work:
                self._emit(core, core.step())
            if self._beat - self._tidied > TIDY_SECONDS:
                self._tidied = self._beat
                tidy()
        self._drain_inbox(core, may_wait=False)  # what came last is aborted like the rest
        for request_id in list(self._pending):
            core.abort(request_id)
        self._emit(core, StepOutputs(outputs=core.drain_ended()))

    def _drain_inbox(self, core: "EngineCore", *, may_wait: bool) -> None:
        """Apply all messages; wait for one, briefly, while there is nothing else to do."""
        while True:
            waits = may_wait and not core.has_work
            try:
                message = self._inbox.get(timeout=0.5) if waits else self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(message, _Add):
                self._add(core, message.request)
            elif isinstance(message, _Abort):
                core.abort(message.request_id)
            else:
                may_wait = False

    def _add(self, core: "EngineCore", request: EngineRequest) -> None:
        """Hand over a request; one that the core refuses ends alone."""
        try:
            core.add(request)
        except RequestError as error:
            self._refuse(core, request, FinishReason.INVALID, error)
        except (TreelineError, ValueError) as error:
            self._refuse(core, request, FinishReason.ERROR, error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._refuse(core, request, FinishReason.OVERLOAD, error)

    def _refuse(
        self, core: "EngineCore", request: EngineRequest, reason: FinishReason, error: Exception
    ) -> None:
        code = error.code if isinstance(error, RequestError) else None
        output = EngineOutput(
            request.request_id, finish_reason=reason, error=str(error), error_code=code
        )
        self._emit(core, StepOutputs(outputs=(output,)))

    def _emit(self, core: "EngineCore", outputs: StepOutputs) -> None:
        self._load_counts = core.num_running, core.num_waiting
        self._memory_counts = core.num_kv_tokens, core.num_cache_tokens
        if self._beat - self._copy_time > COPY_SECONDS or not core.has_work:
            self._copy_time = self._beat
            self._drafter_entries = tuple(core.state_sizes().items())
            self._step_cost = tuple(core.planner.cost.table().items())
        ended = [output.request_id for output in outputs.outputs if output.finish_reason]
        if ended:
            with self._lock:
                self._pending.difference_update(ended)
        self._on_step(outputs)

    def _die(self, error: str) -> None:
        """End every request that was ever accepted, exactly once, and say why."""
        with self._lock:
            self._error = error
            pending, self._pending = self._pending, set()
        self._load_counts = self._memory_counts = (0, 0)
        ends = tuple(
            EngineOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
            for request_id in sorted(pending)
        )
        self._on_step(StepOutputs(outputs=ends, dead=error))


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine that is ready to start, and the tokenizer of its model."""

    client: ThreadedEngine
    tokenizer: "Tokenizer"


def write_datastore(config: EngineConfig, files: Sequence[Path], out: Path) -> int:
    """Write a REST datastore of text files with the model's tokenizer; returns its tokens.

    Raises ModelError if there is no tokenizer, ConfigError if a file cannot be read or written.
    """
    from engine.build import load_tokenizer
    from engine.spec.datastore import build_datastore

    encode = partial(load_tokenizer(config).encode, add_special_tokens=False)
    return build_datastore(files, encode, out)


def load_engine(config: EngineConfig) -> LoadedEngine:
    """Find, load and probe the model. Raises ModelError with one line that a user can act on."""
    from engine.build import build_core, load_tokenizer  # torch is imported with it

    tokenizer = load_tokenizer(config)
    return LoadedEngine(ThreadedEngine(lambda: build_core(config, tokenizer)), tokenizer)
