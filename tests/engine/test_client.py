"""The engine's thread: every request ends exactly once, whatever happens to the engine."""

import threading
import time

import pytest

from engine.client import ThreadedEngine
from engine.errors import EngineDeadError
from engine.types import EngineInfo, EngineOutput, FinishReason, StepOutputs
from tests.engine.tiny import MAX_LEN, VOCAB, make_core, prompts, request, run

INFO = EngineInfo("tiny", "Llama", "cpu", "float32", VOCAB, MAX_LEN, 4, (7,))


class Listener:
    """Collects what the engine says, and waits for ends."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[EngineOutput]] = {}
        self.steps: list[StepOutputs] = []
        self._changed = threading.Condition()

    def __call__(self, step: StepOutputs) -> None:
        with self._changed:
            self.steps.append(step)
            for output in step.outputs:
                self.outputs.setdefault(output.request_id, []).append(output)
            self._changed.notify_all()

    def ended(self, request_id: str) -> bool:
        return any(o.finish_reason for o in self.outputs.get(request_id, ()))

    def wait(self, ready) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, timeout=60)


def start(core=None) -> tuple[ThreadedEngine, Listener, list]:
    cores = []

    def build():
        cores.append(core or make_core())
        return cores[0], INFO

    engine, listener = ThreadedEngine(build), Listener()
    engine.start(listener)
    return engine, listener, cores


def test_memory_is_put_in_order_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests run too: a server that is never idle must not grow either."""
    busy: list[bool] = []
    core = make_core()
    monkeypatch.setattr("engine.client.TIDY_SECONDS", 0.0)
    monkeypatch.setattr("engine.client.tidy", lambda: busy.append(core.has_work))
    engine, listener, _ = start(core)
    item = request(prompts(1)[0], max_tokens=16)
    engine.add(item)
    listener.wait(lambda: listener.ended(item.request_id))
    engine.shutdown(timeout=5.0)
    assert any(busy)


def test_requests_run_and_end() -> None:
    engine, listener, cores = start()
    items = [request(p, m) for p in prompts(4) for m in ("off", "goose", "ptd")]
    for item in items:
        engine.add(item)
    listener.wait(lambda: all(listener.ended(i.request_id) for i in items))
    engine.shutdown(timeout=5.0)
    expected = run(cores[0], [request(i.prompt_token_ids) for i in items])
    for item, outcome in zip(items, expected, strict=True):
        said = listener.outputs[item.request_id]
        assert [t for o in said for t in o.new_token_ids] == outcome.token_ids
        assert [o.finish_reason is not None for o in said] == [False] * (len(said) - 1) + [True]


def test_abort_frees_the_slot_within_two_steps() -> None:
    engine, listener, _ = start()
    item = request([9] * 5, "goose", max_tokens=200, ignore_eos=True)
    engine.add(item)
    listener.wait(lambda: len(listener.steps) > 3)
    engine.abort(item.request_id)
    seen = len(listener.steps)
    listener.wait(lambda: listener.ended(item.request_id))
    last = listener.outputs[item.request_id][-1]
    assert last.finish_reason is FinishReason.ABORT
    ends = next(i for i, s in enumerate(listener.steps) if last in s.outputs)
    assert ends <= seen + 2
    engine.abort(item.request_id)
    engine.abort("never seen")
    engine.shutdown(timeout=5.0)
    assert engine.status().num_running == 0


def test_a_dying_engine_ends_every_request_once(caplog) -> None:
    core = make_core()
    engine, listener, _ = start(core)
    running = [request(p, "ptd", max_tokens=200, ignore_eos=True) for p in prompts(7)]
    for item in running:
        engine.add(item)
    listener.wait(lambda: len(listener.steps) > 3)

    def broken() -> StepOutputs:
        raise RuntimeError("the device is gone")

    core.step = broken
    listener.wait(lambda: listener.steps[-1].dead is not None)
    for item in running:
        ends = [o for o in listener.outputs[item.request_id] if o.finish_reason]
        assert [o.finish_reason for o in ends] == [FinishReason.ERROR]
        assert "the device is gone" in ends[0].error
    status = engine.status()
    assert not status.is_alive
    assert "the device is gone" in status.error
    with pytest.raises(EngineDeadError):
        engine.add(request([9]))
    engine.shutdown(timeout=1.0)


def test_shutdown_lets_running_requests_end_and_aborts_late_ones() -> None:
    engine, listener, _ = start()
    short = request([9] * 4, max_tokens=20, ignore_eos=True)
    engine.add(short)
    engine.shutdown(timeout=30.0)
    assert listener.outputs[short.request_id][-1].finish_reason is FinishReason.LENGTH
    with pytest.raises(EngineDeadError):
        engine.add(request([9]))

    engine, listener, _ = start()
    late = [request([9] * 4, max_tokens=200, ignore_eos=True) for _ in range(6)]
    for item in late:
        engine.add(item)
    engine.shutdown(timeout=0.0)
    for item in late:
        ends = [o.finish_reason for o in listener.outputs[item.request_id] if o.finish_reason]
        assert len(ends) == 1


def test_a_refused_request_ends_alone() -> None:
    engine, listener, _ = start()
    good = request([9] * 4)
    unscannable = request([9] * 4, stop=("x",))  # this core has no tokenizer
    engine.add(unscannable)
    engine.add(good)
    listener.wait(lambda: listener.ended(good.request_id))
    said = listener.outputs[unscannable.request_id]
    assert [o.finish_reason for o in said] == [FinishReason.ERROR]
    engine.shutdown(timeout=5.0)


def test_loading_errors_reach_the_caller() -> None:
    def build():
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        ThreadedEngine(build)


def test_the_heart_beats_while_idle() -> None:
    engine, _, _ = start()
    time.sleep(1.2)
    assert engine.status().seconds_since_step < 1.0
    engine.shutdown(timeout=1.0)
