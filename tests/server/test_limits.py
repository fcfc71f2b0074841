"""What one server takes on: a bounded queue, a time for each request, clients that stop reading."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from server.queue_pace import MOST_SECONDS, QueuePace
from server.settings import ServerSettings
from tests.server.conftest import build, client_of, serving, wait_until
from tests.server.fakes import FakeEngine, cycle
from tests.server.sse import events
from tests.server.test_metrics import MODEL, scrape
from tests.server.test_validation import check_error

BODY: dict[str, Any] = {"model": "m", "prompt": "p" * 10, "max_tokens": 2}
ENDLESS: dict[str, Any] = {"model": "m", "prompt": "p", "max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(
        cycle("abc "), name="m", max_batch=2, max_model_len=200_000, step_seconds=0.001
    )


async def rejected(http: httpx.AsyncClient, reason: str) -> float:
    labels = tuple(sorted({**dict(MODEL), "model_name": "m", "reason": reason}.items()))
    return (await scrape(http))["treeline_requests_rejected_total", labels]


class TestPace:
    """Retry-After follows from what waits and how fast it has gone of late."""

    @pytest.mark.parametrize("gap", [0.1, 1.0, 4.0])
    def test_a_steady_pace(self, gap: float) -> None:
        pace = QueuePace(now=100.0)
        for number in range(1, 201):
            pace.leave(2.0, 100.0 + number * gap)
        assert pace.seconds_for(10.0, 100.0 + 200 * gap) == pytest.approx(5 * gap, abs=1.5)

    def test_bounds(self) -> None:
        pace = QueuePace(now=0.0)
        assert pace.seconds_for(1e9, 50.0) == 1  # nothing is known
        pace.leave(1.0, 51.0)
        assert pace.seconds_for(1e9, 51.0) == MOST_SECONDS
        assert pace.seconds_for(1.0, 5000.0) == MOST_SECONDS  # it has stopped
        pace.leave(1e6, 5000.0)
        assert pace.seconds_for(1.0, 5000.0) == 1


class TestQueue:
    """A full queue refuses at once and says so; an idle server takes any one request."""

    @pytest.fixture
    async def http(self, engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
        settings = ServerSettings(max_queued_requests=3, max_queued_tokens=60)
        async with client_of(build(engine, settings)) as http:
            engine.gate.clear()
            yield http

    async def fill(self, http: httpx.AsyncClient, engine: FakeEngine, count: int) -> list[Any]:
        asked = len(engine.requests) + count
        tasks = [asyncio.create_task(http.post("/v1/completions", json=BODY)) for _ in range(count)]
        await asyncio.to_thread(wait_until, lambda: len(engine.requests) == asked)
        return tasks

    async def test_a_longer_queue_asks_for_more_patience(
        self, http: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two sequences ended in ten seconds, and three wait."""
        now = time.monotonic()
        clock = [now]
        stopped = SimpleNamespace(monotonic=lambda: clock[0])
        monkeypatch.setattr("server.dispatcher.time", stopped)
        tasks = await self.fill(http, engine, 5)
        clock[0] = now + 10.0
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.wait(tasks[:2])
        tasks += await self.fill(http, engine, 2)
        refused = await http.post("/v1/completions", json=BODY)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) == 13  # 15 but for what fades
        engine.gate.set()
        await asyncio.wait(tasks)

    async def test_by_requests(self, http: httpx.AsyncClient, engine: FakeEngine) -> None:
        tasks = await self.fill(http, engine, 5)  # 2 run, 3 wait
        began = time.monotonic()
        for path in ("/v1/completions", "/v1/chat/completions"):
            response = await http.post(path, content=b"not even read")
            error = check_error(response, 503)
            assert error["type"] == error["code"] == "service_unavailable"
            assert int(response.headers["retry-after"]) >= 1
        assert time.monotonic() - began < 0.5
        assert await rejected(http, "queue_requests") == 2
        assert len(engine.requests) == 5
        engine.gate.set()
        assert [(await task).status_code for task in tasks] == [200] * 5
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200

    async def test_n_choices_are_n_sequences(
        self, http: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        tasks = await self.fill(http, engine, 2)
        check_error(await http.post("/v1/completions", json={**BODY, "n": 4}), 503)
        assert len(engine.requests) == 2  # all or none
        engine.gate.set()
        assert [(await task).status_code for task in tasks] == [200] * 2

    async def test_by_tokens(self, http: httpx.AsyncClient, engine: FakeEngine) -> None:
        tasks = await self.fill(http, engine, 3)
        long = {**BODY, "prompt": "x" * 31}
        check_error(await http.post("/v1/completions", json=long), 503)
        assert await rejected(http, "queue_tokens") == 1
        engine.gate.set()
        assert [(await task).status_code for task in tasks] == [200] * 3
        assert (await http.post("/v1/completions", json=long)).status_code == 200

    async def test_an_idle_server_takes_any_request(
        self, http: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.gate.set()
        body = {**BODY, "prompt": "x" * 100, "n": 6}
        response = await http.post("/v1/completions", json=body)
        assert len(response.json()["choices"]) == 6


class TestTime:
    """A request whose time is up gets 408 or an error event, and frees what it held."""

    async def test_whole(self, engine: FakeEngine) -> None:
        async with client_of(build(engine, ServerSettings(request_seconds=0.2))) as http:
            began = time.monotonic()
            error = check_error(await http.post("/v1/completions", json=ENDLESS), 408)
            assert 0.2 <= time.monotonic() - began < 2
            assert (error["type"], error["code"]) == ("timeout", "timeout")
            await asyncio.to_thread(wait_until, lambda: engine.is_idle)
            assert await rejected(http, "timeout") == 1
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200

    async def test_in_the_queue(self, engine: FakeEngine) -> None:
        async with client_of(build(engine, ServerSettings(request_seconds=0.1))) as http:
            engine.gate.clear()
            check_error(await http.post("/v1/completions", json=BODY), 408)
            engine.gate.set()
            await asyncio.to_thread(wait_until, lambda: engine.is_idle)

    async def test_in_a_stream(self, engine: FakeEngine) -> None:
        async with client_of(build(engine, ServerSettings(request_seconds=0.2))) as http:
            response = await http.post(
                "/v1/completions", json={**ENDLESS, "stream": True, "prompt": ["a", "b", "c"]}
            )
            assert response.status_code == 200
            *chunks, last = events(response.text)
            assert len(chunks) > 2
            assert last["error"]["code"] == "timeout"
            await asyncio.to_thread(wait_until, lambda: engine.is_idle)

    async def test_zero_is_no_limit(self, engine: FakeEngine) -> None:
        async with client_of(build(engine, ServerSettings(request_seconds=0.0))) as http:
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200

    def test_a_body_that_never_comes(self, engine: FakeEngine) -> None:
        with serving(engine, ServerSettings(request_seconds=0.2)) as live:
            host, port = live.url.removeprefix("http://").split(":")
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
                assert b" 408 " in connection.recv(1000)


def test_a_client_that_stops_reading_is_left(engine: FakeEngine) -> None:
    engine.block = 32
    with serving(engine, ServerSettings(stall_seconds=1)) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            # Log-probabilities make it more than the kernel buffers for a client.
            body = json.dumps({**ENDLESS, "max_tokens": 199_000, "stream": True, "logprobs": 5})
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            wait_until(lambda: bool(engine.requests))
            wait_until(lambda: live.num_waiting == 0 and engine.is_idle, 20)
        assert engine.aborted, "the answer ended before the client stalled"
