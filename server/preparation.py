"""What happens to a body before the engine hears of it, off the event loop where it takes long."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from server.body import read_body
from server.context import Context, context_of

Prepared = TypeVar("Prepared")

INLINE_BYTES = 2048  # larger bodies are parsed and tokenised in a thread


async def prepared(request: Request, prepare: Callable[[Context, bytes], Prepared]) -> Prepared:
    """`prepare(context, raw body)`, which parses, validates and tokenises. Raises what it raises,
    and ApiError for a body of the wrong type or size."""
    context = context_of(request)
    raw = await read_body(request, context.settings.max_body_bytes)
    if len(raw) > INLINE_BYTES:
        return await asyncio.to_thread(prepare, context, raw)
    return prepare(context, raw)
