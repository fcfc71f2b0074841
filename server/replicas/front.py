"""What stands before Ray's proxy: names for the router, one request id, failures in OpenAI's shape.

Ray's proxy sends a body on without looking at it, cuts a stream whose replica has died without a
word, and keeps whatever a slow client has not read. This middleware, the outermost in the proxy's
process, reads the body first, tells the client what happened, and leaves a client that stalls. It
must not import the engine's model: each node has a proxy, and not each has a GPU.
"""

import asyncio
import logging
import os
from collections import deque
from dataclasses import dataclass

import orjson
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, timed_out, unavailable
from server.replicas.prefix_names import prefix_names
from server.settings import ServerSettings
from server.tracing import trace_id

logger = logging.getLogger("ray.serve")

FACTORY = "server.replicas.front.middlewares"
PASSED_ON = ("stall_seconds", "max_body_bytes", "request_seconds")  # settings that work here
ROUTED = frozenset({"/v1/completions", "/v1/chat/completions"})
REPLICA_HEADER = "x-treeline-replica"  # on every answer of a replica, so on none of the proxy's own
INLINE_BYTES = 65536  # larger bodies are parsed in a thread


def environment(settings: ServerSettings) -> dict[str, str]:
    """The variables that put this middleware, with these settings, into Ray's proxies."""
    passed = {f"TREELINE_SERVER_{name.upper()}": str(getattr(settings, name)) for name in PASSED_ON}
    return passed | {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": FACTORY,
        # Ray replaces a proxy that is not up in five seconds, which a busy machine may need.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }


def middlewares() -> list[Middleware]:
    """Called by Ray's proxy when it starts."""
    settings = ServerSettings(
        stall_seconds=float(os.environ["TREELINE_SERVER_STALL_SECONDS"]),
        max_body_bytes=int(os.environ["TREELINE_SERVER_MAX_BODY_BYTES"]),
        request_seconds=float(os.environ["TREELINE_SERVER_REQUEST_SECONDS"]),
    )
    return [Middleware(ReplicaFront, settings=settings)]


class ReplicaFront:
    """ASGI middleware around Ray's proxy."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):  # Ray's own routes
            await self._app(scope, receive, send)
            return
        headers = MutableHeaders(scope=scope)
        exchange = _Exchange(receive, send, self._settings.stall_seconds)
        headers["x-request-id"] = exchange.request_id = trace_id(headers.get("x-request-id"))
        session = headers.get("x-session-id", "")
        del headers["x-session-id"]
        try:
            if scope["path"] in ROUTED:
                body = await self._body(exchange)
                if len(body) > INLINE_BYTES:
                    names = await asyncio.to_thread(prefix_names, body, session)
                else:
                    names = prefix_names(body, session)
                if names:
                    headers["x-session-id"] = ",".join(names)
            await self._app(scope, exchange.receive, exchange.send)
        except ApiError as error:
            await exchange.refuse(error)
        except Exception:
            logger.exception("unforeseen error in request %s", exchange.request_id)
        await exchange.finish()

    async def _body(self, exchange: "_Exchange") -> bytes:
        """The body as far as it may go; the replica will read it again. Raises ApiError 408."""
        seconds = self._settings.request_seconds
        try:
            async with asyncio.timeout(seconds or None):
                return await exchange.read(self._settings.max_body_bytes)
        except TimeoutError as error:
            raise timed_out(seconds) from error


@dataclass(slots=True)
class _Answer:
    """What the client has been sent of its answer."""

    is_started: bool = False
    is_whole: bool = False
    is_stream: bool = False
    is_refusal: bool = False  # by the proxy itself, in its own shape: kept back


class _Exchange:
    """One request between uvicorn and Ray's proxy."""

    def __init__(self, receive: Receive, send: Send, stall_seconds: float) -> None:
        self.request_id = ""
        self._receive = receive
        self._send = send
        self._stall_seconds = stall_seconds
        self._held: deque[Message] = deque()
        self._answer = _Answer()
        self._has_stalled = asyncio.Event()

    async def read(self, max_bytes: int) -> bytes:
        """The body, or more than `max_bytes` of it; `receive` gives the same messages again."""
        body = bytearray()
        while len(body) <= max_bytes:
            message = await self._receive()
            self._held.append(message)
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)

    async def receive(self) -> Message:
        """The next message; a client that has stalled counts as gone."""
        if self._held:
            return self._held.popleft()
        told = asyncio.ensure_future(self._receive())
        stalled = asyncio.ensure_future(self._has_stalled.wait())
        try:
            await asyncio.wait((told, stalled), return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if stalled.done() else told.result()
        finally:
            told.cancel()
            stalled.cancel()

    async def send(self, message: Message) -> None:
        """Pass on what a replica says; hold back what the proxy says in its place."""
        answer = self._answer
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            answer.is_refusal = message["status"] >= 400 and REPLICA_HEADER not in headers
            headers["x-request-id"] = self.request_id  # the proxy adds a second one
            answer.is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if answer.is_refusal or self._has_stalled.is_set():
            return
        answer.is_started = True
        is_last = not message.get("more_body", False)
        answer.is_whole = message["type"] == "http.response.body" and is_last
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(message)
        except TimeoutError:
            self._has_stalled.set()  # the proxy hears of it from `receive`, and aborts the request

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error, unless something has been said before."""
        if self._answer.is_started:
            return
        response = error.response()
        response.headers["x-request-id"] = self.request_id
        self._answer.is_started = self._answer.is_whole = True
        await response({"type": "http"}, self._receive, self._send)

    async def finish(self) -> None:
        """Say what is missing: the replica refused to say more, or died."""
        answer = self._answer
        if answer.is_whole or self._has_stalled.is_set():
            return
        if answer.is_refusal:
            await self.refuse(unavailable("No replica takes requests now."))
            return
        lost = unavailable("The replica that served this request has stopped.")
        if not answer.is_started:
            await self.refuse(lost)
        elif answer.is_stream:
            tail = b"data: " + orjson.dumps(lost.body()) + b"\n\ndata: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": tail})
        # Else a whole answer is cut: uvicorn closes the connection, and its length tells.
