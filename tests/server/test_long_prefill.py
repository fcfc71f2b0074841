"""Probes during a prompt that takes the engine longer than a probe may wait for a step."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from engine.client import ThreadedEngine
from engine.config import SpeculationConfig
from engine.types import EngineInfo
from server.app import create_app
from server.settings import ServerSettings
from tests.engine.tiny import MAX_LEN, VOCAB, make_core
from tests.server.conftest import client_of
from tests.server.fakes import FakeTokenizer

CHUNK_SECONDS, READY_SECONDS = 0.03, 1.0


async def test_a_long_prefill_fails_no_probe() -> None:
    """Readiness follows the engine's heart, which beats with each chunk, and not its answers."""
    core = make_core(prefill_chunk=4)
    run = core._runner.run
    passes: list[int] = []

    def slow(parts: Sequence[Any]) -> Any:
        time.sleep(CHUNK_SECONDS)
        passes.append(parts[0].num_rows)
        return run(parts)

    core._runner.run = slow
    info = EngineInfo("m", "Llama", "cpu", "float32", VOCAB, MAX_LEN, 4, (7,))
    engine = ThreadedEngine(lambda: (core, info))
    settings = ServerSettings(ready_seconds=READY_SECONDS)
    app = create_app(engine, FakeTokenizer(), SpeculationConfig(), settings)
    async with client_of(app) as http:
        body = {"model": "m", "prompt": [9, 10] * 120, "max_tokens": 1}
        answer = asyncio.create_task(http.post("/v1/completions", json=body))
        statuses: list[int] = []
        while not answer.done():
            statuses += [(await http.get(path)).status_code for path in ("/ready", "/health")]
            await asyncio.sleep(0.02)
        assert (await answer).status_code == 200
    assert len(passes) == 60
    assert len(passes) * CHUNK_SECONDS > 1.5 * READY_SECONDS  # so an answer would come too late
    assert set(statuses) == {200}
    assert len(statuses) > 10
