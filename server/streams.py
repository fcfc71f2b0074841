"""How answers leave: whole, or as server-sent events that the strictest client can read.

Only `data:` lines and, if asked for, one-line comments are sent; never `id:`, `event:` or `retry:`,
for SDKs parse the data of every event. A client that leaves ends its job in either form.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.access_log import RequestRecord, record_of
from server.answer import Answer
from server.context import Context
from server.errors import ApiError, ClientLeftError, internal_error
from server.job import Job
from server.mailbox import Mailbox

logger = logging.getLogger("treeline.http")

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event on one line. JSON escapes every line break inside strings."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class KeepAlive(ServerSentEvent):
    """A comment without the blank line that would end an event: safe for every parser."""

    def encode(self) -> bytes:
        return b": keep-alive\n"


class TokenStream(EventSourceResponse):
    """A stream that releases its job however it ends, even if it never began, and that leaves a
    client which takes no chunk for `stall_seconds`."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        release: Callable[[], None],
        keep_alive: float,
        stall_seconds: float,
    ) -> None:
        super().__init__(
            events,
            sep="\n",
            ping=keep_alive,
            ping_message_factory=KeepAlive,
            send_timeout=stall_seconds,
            headers={"Cache-Control": "no-cache"},
        )
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            record_of(scope).facts["error"] = "client_stalled"
        finally:
            self._release()


async def stream_events(
    mailbox: Mailbox, answer: Answer, job: Job, record: RequestRecord
) -> AsyncIterator[bytes]:
    """The events of a job, `[DONE]` last. A failure becomes an error event before it."""
    try:
        while not answer.is_done:
            for index, output in (await mailbox.take()).items():
                for chunk in answer.feed(index, output):
                    yield event(chunk)
        for chunk in answer.tail():
            yield event(chunk)
    except ApiError as error:
        record.facts["error"] = error.code
        yield event(error.body())
    except Exception:
        logger.exception("unforeseen error in stream %s", job.response_id)
        record.facts["error"] = "internal_error"
        yield event(internal_error(job.response_id).body())
    yield DONE


async def whole_body(request: Request, mailbox: Mailbox, answer: Answer) -> dict[str, Any]:
    """The complete response. Raises ClientLeftError as soon as the client has gone."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        mailbox.fail(ClientLeftError())

    watcher = asyncio.create_task(watch())
    try:
        while not answer.is_done:
            for index, output in (await mailbox.take()).items():
                answer.feed(index, output)
        return answer.body()
    finally:
        watcher.cancel()


async def respond(
    request: Request, context: Context, job: Job, answer: Answer, keep_alive: float | None
) -> Response:
    """Run a job and answer with it: as a stream with comments every `keep_alive` seconds (0: none),
    whole if that is None. Raises ApiError before anything is sent."""
    record, dispatcher = record_of(request.scope), context.dispatcher
    record.facts["stream"] = keep_alive is not None
    if context.settings.log_prompts:
        prompts = [r.prompt_token_ids for r in job.requests[:: job.num_candidates]]
        record.facts["prompts"] = [context.tokenizer.decode(ids, False) for ids in prompts]
    mailbox = dispatcher.submit(job)

    def release() -> None:
        dispatcher.release(job)
        record.facts |= answer.facts()

    if keep_alive is not None:
        events = stream_events(mailbox, answer, job, record)
        return TokenStream(events, release, keep_alive, context.settings.stall_seconds)
    try:
        body = await whole_body(request, mailbox, answer)
    finally:
        release()
    return Response(orjson.dumps(body), media_type="application/json")
