"""`treeline` with an engine that needs no model: run as a process by test_serving.py.

One token each 50 ms per request. The prompt "die" ends the engine in the middle of it, SIGUSR1 at
once. The prompt "gc" is answered "y" if what is loaded is kept from the garbage collector, else
"n".
"""

import gc
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import engine.api
from engine.client import EngineStatus, OnStep
from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.types import (
    PLAIN_TEXT,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SpecStats,
    StepOutputs,
    TextRules,
)
from server.cli import main

STEP_SECONDS = 0.05
dies = threading.Event()


class Bytes:
    """A tokenizer with one token per byte."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")

    def detokenizer(self, rules: TextRules = PLAIN_TEXT) -> "Bytes":
        return self

    def push(self, token_ids: Sequence[int]) -> str:
        return self.decode(token_ids)

    def flush(self) -> str:
        return ""

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        raise AssertionError("the stub has no chat template")


class SlowEngine:
    """An EngineClient that answers "a" until max_tokens."""

    def __init__(self, config: EngineConfig) -> None:
        self.info = EngineInfo(
            config.model.name, "Stub", "cpu", "float32", 256, 4096, config.max_batch, ()
        )
        self._running: dict[str, tuple[EngineRequest, int]] = {}
        self._error: str | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        if self._error is not None:
            raise EngineDeadError(self._error)
        self._running[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def status(self) -> EngineStatus:
        return EngineStatus(
            self._error is None, self._stopping, len(self._running), 0, 0.0, self._error
        )

    def shutdown(self, timeout: float) -> None:
        self._stopping = True

    def _loop(self) -> None:
        while not self._stopping:
            time.sleep(STEP_SECONDS)
            if dies.is_set():
                self._error = "RuntimeError: killed by SIGUSR1"
                self._on_step(StepOutputs(dead=self._error))
                return
            outputs = []
            for request_id, (request, done) in list(self._running.items()):
                if request.prompt_token_ids == tuple(b"die") and done == 3:
                    self._error = "RuntimeError: the device is gone"
                    self._on_step(StepOutputs(dead=self._error))
                    return
                self._running[request_id] = (request, done + 1)
                reason = FinishReason.LENGTH if done + 1 == request.sampling.max_tokens else None
                if reason:
                    self._running.pop(request_id, None)
                stats = SpecStats(steps=done + 1, tokens=done + 1) if reason else None
                outputs.append(
                    EngineOutput(request_id, (_token(request),), finish_reason=reason, stats=stats)
                )
            if outputs:
                self._on_step(StepOutputs(tuple(outputs)))


def _token(request: EngineRequest) -> int:
    if request.prompt_token_ids != tuple(b"gc"):
        return ord("a")
    is_spared = gc.get_freeze_count() > 10_000 and gc.get_threshold()[0] > 5_000
    return ord("y" if is_spared else "n")


@dataclass
class Loaded:
    client: SlowEngine
    tokenizer: Bytes


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: dies.set())
    engine.api.load_engine = lambda config: Loaded(SlowEngine(config), Bytes())  # type: ignore
    sys.exit(main())
