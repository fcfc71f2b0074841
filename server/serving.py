"""The process that serves: port first, then the model, then HTTP until a signal or the engine ends.

The port is taken before the model is loaded, so that a clash costs no minute of waiting. The first
signal drains: new requests are refused with 503, running ones finish within `server.drain_seconds`,
what then remains ends with an error. A second signal ends the process at once.
"""

import json
import shlex
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from engine.api import spare_the_collector
from engine.errors import ConfigError, TreelineError
from server.api_keys import ApiKeys
from server.log_format import configure_logging
from server.settings import ServerSettings, Settings
from server.spans import make_exporter

if TYPE_CHECKING:  # it brings torch, and what is wrong before the model is said at once
    from server.dispatcher import Dispatcher

FLUSH_SECONDS = 3.0  # for clients to take their last bytes, once all requests have ended


class PortError(TreelineError):
    """The address cannot be listened on. The message is one line that a user can act on."""


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT (returns 0) or until the engine dies (returns 1).

    Raises PortError if the address cannot be had, ModelError if the model cannot, ConfigError if a
    file with keys or certificates cannot.
    """
    ours = settings.server
    check_files(ours)
    listener = bind(ours.host, ours.port)
    _leave_stalled_clients(listener, ours.stall_seconds)
    configure_logging(ours.log_format)
    from engine.api import load_engine
    from server.app import create_app

    name = settings.engine.model.name
    print(f"treeline: loading {name}", file=sys.stderr, flush=True)
    engine = load_engine(settings.engine)
    try:
        app = create_app(
            engine.client, engine.tokenizer, settings.engine.speculation, ours, settings
        )
        spare_the_collector()
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=int(FLUSH_SECONDS),
            ssl_certfile=ours.ssl_certfile,
            ssl_keyfile=ours.ssl_keyfile,
        )
        server = _Server(
            config,
            app.state.context.dispatcher,
            ours.drain_seconds,
            announce=lambda: print(_ready(name, listener, ours), flush=True),
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
    """uvicorn's server, which also says when it accepts, drains, and ends when the engine has."""

    def __init__(
        self,
        config: uvicorn.Config,
        dispatcher: "Dispatcher",
        drain_seconds: float,
        announce: Callable[[], None],
        is_alive: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self._dispatcher = dispatcher
        self._drain_seconds = drain_seconds
        self._drain_deadline: float | None = None
        self._announce = announce
        self._is_alive = is_alive
        self.engine_died = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, then the ready line."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, _sig: int, _frame: FrameType | None) -> None:
        """The first signal drains, the second ends the server at once."""
        if self._drain_deadline is None:
            self._drain_deadline = time.monotonic() + self._drain_seconds
        else:
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn's, ten times a second; True ends the server."""
        if not self._is_alive():
            self.engine_died = True
            return True
        if self._drain_deadline is not None:
            self._dispatcher.drain()
            if not self._dispatcher.num_waiting:
                return True
            if time.monotonic() > self._drain_deadline:
                self._dispatcher.give_up()
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


def check_files(settings: ServerSettings) -> None:
    """Find out before the model is loaded what a file of keys or certificates lacks, and whether
    traces can be sent."""
    ApiKeys(settings)
    if settings.otlp_endpoint is not None:
        make_exporter(settings.otlp_endpoint).shutdown()
    if settings.ssl_certfile is not None and settings.ssl_keyfile is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
        except OSError as error:  # of which ssl.SSLError is one
            message = f"server.ssl_certfile, server.ssl_keyfile: cannot be used: {error}"
            raise ConfigError(message) from error


def _leave_stalled_clients(listener: socket.socket, seconds: float) -> None:
    """Let the kernel end connections whose client takes nothing: closing one would wait for it."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises PortError."""
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


def _ready(model: str, listener: socket.socket, settings: ServerSettings) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if settings.ssl_certfile else "http"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    body = json.dumps({"model": model, "prompt": "def fib(n):", "max_tokens": 64})
    header = "-H 'Content-Type: application/json'"
    if ApiKeys(settings):
        header += " -H 'Authorization: Bearer KEY'"
    return (
        f"Treeline serves {model} at {url}; try:\n"
        f"curl {url}/v1/completions {header} -d {shlex.quote(body)}"
    )
