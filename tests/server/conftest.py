"""A server over a fake engine, in process and on a real port."""

import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from engine.config import SpeculationConfig
from server.app import create_app
from server.settings import ServerSettings
from tests.server.fakes import FakeEngine, FakeTokenizer, cycle


def build(
    engine: FakeEngine,
    settings: ServerSettings | None = None,
    tokenizer: FakeTokenizer | None = None,
) -> FastAPI:
    """The app over a fake engine."""
    return create_app(engine, tokenizer or FakeTokenizer(), SpeculationConfig(), settings)


@contextlib.asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client whose requests go straight into a running app."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as http,
    ):
        yield http


@pytest.fixture
def engine() -> FakeEngine:
    """Tests set `engine.script` before they send."""
    return FakeEngine(cycle("abcdefghijklmnopqrstuvwxyz "))


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client whose requests go straight into the app."""
    async with client_of(build(engine)) as http:
        yield http


@dataclass
class Live:
    """A server on a port."""

    url: str
    engine: FakeEngine
    app: FastAPI

    @property
    def num_waiting(self) -> int:
        """Sequences that the server still remembers."""
        waiting: int = self.app.state.context.dispatcher.num_waiting
        return waiting


@contextlib.contextmanager
def serving(
    engine: FakeEngine,
    settings: ServerSettings | None = None,
    tokenizer: FakeTokenizer | None = None,
) -> Iterator[Live]:
    """Run uvicorn in a thread, as `serve` runs it in the main one."""
    app = build(engine, settings, tokenizer)
    config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, app)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture
def live(engine: FakeEngine) -> Iterator[Live]:
    """A live server over `engine`."""
    with serving(engine) as server:
        yield server


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.005)
