"""The process that serves: port first, then the model, then HTTP until a signal or the engine ends.

The port is taken before the model is loaded, so that a clash costs no minute of waiting. A signal
drains: no new connections, running requests finish within `server.drain_seconds`.
"""

import json
import shlex
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from engine.errors import TreelineError
from server.settings import Settings


class PortError(TreelineError):
    """The address cannot be listened on. The message is one line that a user can act on."""


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT (returns 0) or until the engine dies (returns 1).

    Raises PortError if the address cannot be had, ModelError if the model cannot.
    """
    listener = _bind(settings.server.host, settings.server.port)
    # Only now: these bring torch, and what is wrong before them is said at once.
    from engine.api import load_engine
    from server.app import create_app

    name = settings.engine.model.name
    print(f"treeline: loading {name}", file=sys.stderr, flush=True)
    engine = load_engine(settings.engine)
    try:
        app = create_app(
            engine.client, engine.tokenizer, settings.engine.speculation, settings.server
        )
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=settings.server.drain_seconds,
        )
        server = _Server(
            config,
            announce=lambda: print(_ready(name, listener), flush=True),
            is_alive=lambda: engine.client.status().is_alive,
        )
        _leave_signals_to(server, listener)
        if server.engine_died:
            reason = engine.client.status().error
            print(f"treeline: the engine has stopped: {reason}", file=sys.stderr, flush=True)
            return 1
    finally:
        engine.client.shutdown(timeout=0.0)  # the app has drained it, unless it never ran
    return 0


class _Server(uvicorn.Server):
    """uvicorn's server, which also says when it accepts and ends when the engine has."""

    def __init__(
        self, config: uvicorn.Config, announce: Callable[[], None], is_alive: Callable[[], bool]
    ) -> None:
        super().__init__(config)
        self._announce = announce
        self._is_alive = is_alive
        self.engine_died = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, then the ready line."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's, ten times a second; True ends the server."""
        if not self._is_alive():
            self.engine_died = True
            return True
        return await super().on_tick(counter)


def _leave_signals_to(server: _Server, listener: socket.socket) -> None:
    """Run; a signal that uvicorn has answered by draining must not kill the process after it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listener])
    except OSError as error:
        # Another process began to listen while the model was loading.
        host, port = listener.getsockname()[:2]
        raise PortError(_refusal(host, port, error)) from error


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns off Nagle's delay, 40 ms a chunk, only where the protocol is named.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise PortError(_refusal(host, port, error)) from error
    return listener


def _refusal(host: str, port: int, error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"cannot listen on {host}:{port}: {reason}; choose another with --host or --port"


def _ready(model: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = json.dumps({"model": model, "prompt": "def fib(n):", "max_tokens": 64})
    return (
        f"Treeline serves {model} at {url}; try:\n"
        f"curl {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )
