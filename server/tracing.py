"""Request ids for people: every answer names one, and the log finds it again.

The client's `x-request-id` is echoed for its own tracing and never identifies anything inside: two
clients may send the same one. It also is the last line of defence, where an unforeseen exception
becomes an opaque 500 in OpenAI's shape, and where a request's one log line is written.
"""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access_log import RequestRecord, attach, write
from server.errors import internal_error
from server.spans import RequestSpans

logger = logging.getLogger("treeline.http")

MAX_ID_LENGTH = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=-]")


def trace_id(sent: str | None) -> str:
    """The id to echo: what the client sent, made safe for headers and logs, else a fresh one."""
    safe = _UNSAFE.sub("", (sent or "")[: 4 * MAX_ID_LENGTH])[:MAX_ID_LENGTH]
    return safe or f"req-{uuid.uuid4().hex}"


class RequestTracing:
    """ASGI middleware: sets `x-request-id` on every answer, turns stray exceptions into 500s, logs
    each request once, when it has ended, and gives it a span if there are `spans`."""

    def __init__(self, app: ASGIApp, spans: RequestSpans | None = None) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = trace_id(Headers(scope=scope).get("x-request-id"))
        record = RequestRecord(request_id, scope["method"], scope["path"])
        attach(scope, record)
        span = self._spans.begin(scope, record) if self._spans is not None else None
        is_started = False

        async def traced_send(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, traced_send)
        except Exception:
            logger.exception("unforeseen error in request %s", request_id)
            if is_started:
                raise
            await internal_error(request_id).response()(scope, receive, traced_send)
        finally:
            if self._spans is not None and span is not None:
                self._spans.end(span, scope, record)
            write(record)
