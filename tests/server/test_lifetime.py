"""Clients that leave, engines that die, steps that fail: every request ends once, nothing leaks."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from engine.types import EngineOutput, FinishReason, StepOutputs
from server.settings import ServerSettings
from tests.server.conftest import Live, serving, wait_until
from tests.server.fakes import FakeEngine, cycle, reply
from tests.server.sse import events
from tests.server.test_validation import check_error

ENDLESS: dict[str, Any] = {"model": "m", "prompt": "p", "max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture
def engine() -> FakeEngine:
    """An engine with room for endless answers, a few tokens per millisecond."""
    return FakeEngine(cycle("abc "), max_model_len=200_000, name="m", step_seconds=0.002)


def is_free(live: Live) -> bool:
    """Whether neither side remembers a request."""
    return live.engine.is_idle and live.num_waiting == 0


class TestDisconnect:
    """A client that leaves, however it asked, frees its slot at once."""

    @pytest.mark.parametrize("extra", [{}, {"n": 2}, {"prompt": ["a", "b"]}])
    async def test_stream(self, live: Live, extra: dict[str, Any]) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            body = {**ENDLESS, "stream": True, **extra}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                for _ in range(3):
                    await anext(lines)
                await response.aclose()
            await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)
        assert len(live.engine.aborted) == len(live.engine.requests)

    @pytest.mark.parametrize("extra", [{}, {"n": 2}, {"prompt": ["a", "b"]}])
    async def test_whole(self, live: Live, extra: dict[str, Any]) -> None:
        async with httpx.AsyncClient(base_url=live.url, timeout=0.2) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/completions", json={**ENDLESS, **extra})
        await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)
        assert len(live.engine.aborted) == len(live.engine.requests)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_before_the_first_token(self, live: Live, stream: bool) -> None:
        live.engine.gate.clear()
        async with httpx.AsyncClient(base_url=live.url, timeout=0.2) as http:
            with pytest.raises(httpx.ReadTimeout):
                async with http.stream(
                    "POST", "/v1/completions", json={**ENDLESS, "stream": stream}
                ) as response:
                    await response.aread()
        await asyncio.to_thread(wait_until, lambda: live.num_waiting == 0, 1.0)
        live.engine.gate.set()
        await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)

    def test_within_a_millisecond_of_asking(self, live: Live) -> None:
        host, port = live.url.removeprefix("http://").split(":")
        content = json.dumps({**ENDLESS, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        raw = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        for _ in range(100):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(raw)
        wait_until(lambda: is_free(live))

    async def test_counted_as_abort(self, live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/completions", json=ENDLESS, timeout=0.1)
            await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)
            await asyncio.sleep(0.02)
            text = (await http.get("/metrics")).text
        assert 'finished_reason="abort",model_name="m"} 1.0' in text
        assert 'treeline_num_requests_running{model_name="m"} 0.0' in text

    async def test_a_client_that_leaves_at_the_last_token(
        self, live: Live, monkeypatch: Any
    ) -> None:
        """The engine ends the sequence by itself, when nobody waits for its end any more."""
        emit, emitted = live.engine._emit, []

        def emit_late(step: StepOutputs) -> None:
            if any(output.finish_reason for output in step.outputs):
                wait_until(lambda: live.num_waiting == 0)
            emit(step)
            emitted.append(step)

        monkeypatch.setattr(live.engine, "_emit", emit_late)
        async with httpx.AsyncClient(base_url=live.url) as http:
            body = {**ENDLESS, "max_tokens": 8, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                await anext(response.aiter_lines())
                await response.aclose()
            await asyncio.to_thread(wait_until, lambda: len(emitted) == 2)
            text = (await http.get("/metrics")).text
        assert 'finished_reason="abort",model_name="m"} 1.0' in text
        assert 'finished_reason="length",model_name="m"} 0.0' in text


async def test_a_client_that_stops_reading_blocks_nobody(live: Live) -> None:
    async with httpx.AsyncClient(base_url=live.url) as http:
        body = {**ENDLESS, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as stalled:
            await anext(stalled.aiter_raw())
            for _ in range(20):
                answer = await http.post(
                    "/v1/completions", json={"model": "m", "prompt": "q", "max_tokens": 20}
                )
                assert answer.json()["usage"]["completion_tokens"] == 20
            await stalled.aclose()
    await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)


class TestDeath:
    """The engine's end reaches every waiting client once, and readiness."""

    async def test_whole(self, live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            tasks = [asyncio.create_task(http.post("/v1/completions", json=ENDLESS)) for _ in "abc"]
            await asyncio.to_thread(wait_until, lambda: len(live.engine.running) == 3)
            live.engine.kill("out of memory at 0xdead")
            for response in await asyncio.gather(*tasks):
                error = check_error(response, 500)
                assert error["type"] == "server_error"
                assert "0xdead" not in error["message"]
            check_error(await http.get("/health"), 503)
            check_error(await http.get("/ready"), 503)
            check_error(await http.post("/v1/completions", json=ENDLESS), 503)
            assert (await http.get("/metrics")).status_code == 200
        assert live.num_waiting == 0

    async def test_stream(self, live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            body = {**ENDLESS, "stream": True, "n": 2}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200
                live.engine.kill("boom")
                raw = (await response.aread()).decode()
        *chunks, last = events(raw)
        assert all("error" not in chunk for chunk in chunks)
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert live.num_waiting == 0

    async def test_a_hang_fails_readiness(self, engine: FakeEngine) -> None:
        with serving(engine, ServerSettings(ready_seconds=0.05)) as live:
            await self._hang(live)

    async def _hang(self, live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            assert (await http.get("/ready")).status_code == 200
            live.engine.gate.clear()
            await asyncio.sleep(0.1)
            assert (await http.get("/ready")).status_code == 200  # idle, nothing waits
            task = asyncio.create_task(
                http.post("/v1/completions", json={**ENDLESS, "max_tokens": 5})
            )
            await asyncio.to_thread(wait_until, lambda: len(live.engine.requests) == 1)
            check_error(await http.get("/ready"), 503)
            assert (await http.get("/health")).status_code == 200  # it lives
            live.engine.gate.set()
            assert (await task).status_code == 200
            assert (await http.get("/ready")).status_code == 200


class TestFailure:
    """One request's failure is its own."""

    async def test_whole(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        engine.fail_next = "index 7 out of range"
        error = check_error(await client.post("/v1/completions", json=ENDLESS), 500)
        assert "index 7" not in error["message"]
        body = {"model": "m", "prompt": "p"}
        assert (await client.post("/v1/completions", json=body)).status_code == 200

    async def test_want_of_memory_is_a_503(
        self, client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: Any
    ) -> None:
        def overloaded(state: Any) -> EngineOutput:
            del engine.running[state.request.request_id]
            return EngineOutput(
                state.request.request_id, finish_reason=FinishReason.OVERLOAD, error="no memory"
            )

        monkeypatch.setattr(engine, "_step", overloaded)
        response = await client.post("/v1/completions", json=ENDLESS)
        error = check_error(response, 503)
        assert error["code"] == "service_unavailable"
        assert response.headers["retry-after"]

    async def test_stream_aborts_the_siblings(self, live: Live) -> None:
        async with httpx.AsyncClient(base_url=live.url) as http:
            body = {**ENDLESS, "stream": True, "prompt": ["a", "b"]}
            live.engine.script = lambda prompt, index: ord("x")
            async with http.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                await anext(lines)
                live.engine.fail_next = "bad"
                rest = "\n".join([line async for line in lines])
        assert '"error"' in rest
        assert rest.rstrip().endswith("data: [DONE]")
        await asyncio.to_thread(wait_until, lambda: is_free(live), 1.0)

    async def test_stray_exception_is_an_opaque_500(
        self, client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: Any
    ) -> None:
        def explode(request: object) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(engine, "add", explode)
        response = await client.post("/v1/completions", json={**ENDLESS, "max_tokens": 1})
        error = check_error(response, 500)
        assert "secret" not in error["message"]
        assert response.headers["x-request-id"] in error["message"]


class TestKeepAlive:
    """Comments between events, safe for strict parsers; none unless configured."""

    def test_comments(self) -> None:
        engine = FakeEngine(reply("ok"), name="m")
        engine.gate.clear()
        with serving(engine, ServerSettings(keep_alive_seconds=0.05)) as live:
            body = {"model": "m", "prompt": "p", "stream": True}
            with httpx.stream("POST", f"{live.url}/v1/completions", json=body) as response:
                lines = response.iter_raw()
                assert next(lines) == b": keep-alive\n"
                engine.gate.set()
                raw = b": keep-alive\n" + b"".join(lines)
        text = raw.decode()
        assert events(text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert all(block for block in text.split("\n\n")[:-1])
        dispatched = [block for block in text.split("\n\n")[:-1] if "data: " not in block]
        assert dispatched == []


async def test_tokenising_does_not_block_the_loop(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: Any
) -> None:
    import time

    from tests.server.fakes import FakeTokenizer

    def slow(self: FakeTokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        time.sleep(0.4)
        return [1]

    monkeypatch.setattr(FakeTokenizer, "encode", slow)
    body = {"model": "m", "prompt": "x" * 10_000, "max_tokens": 1}
    task = asyncio.create_task(client.post("/v1/completions", json=body))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    assert (await client.get("/health")).status_code == 200
    assert time.monotonic() - began < 0.2
    assert (await task).status_code == 200
