"""What happens to a body before the engine hears of it, off the event loop where it takes long."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from server.body import read_body
from server.context import Context, context_of
from server.errors import timed_out

Prepared = TypeVar("Prepared")

INLINE_BYTES = 2048  # larger bodies are parsed and tokenised in a thread
SLOW_FIELDS = (b'"response_format"', b'"structured_outputs"', b'"tools"')  # grammars to compile


async def admitted(request: Request) -> None:
    """A route's dependency that refuses what the queue has no room for before its body is read."""
    context_of(request).dispatcher.check_open()


async def prepared(request: Request, prepare: Callable[[Context, bytes], Prepared]) -> Prepared:
    """`prepare(context, raw body)`, which parses, validates and tokenises. Raises what it raises,
    and ApiError for a body of the wrong type or size, or one that takes too long to come."""
    context = context_of(request)
    seconds = context.settings.request_seconds
    try:
        async with asyncio.timeout(seconds or None):
            raw = await read_body(request, context.settings.max_body_bytes)
    except TimeoutError as error:
        context.metrics.count_rejected("timeout")
        raise timed_out(seconds) from error
    if len(raw) > INLINE_BYTES or any(field in raw for field in SLOW_FIELDS):
        return await asyncio.to_thread(prepare, context, raw)
    return prepare(context, raw)
