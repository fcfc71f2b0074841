"""POST /v1/completions."""

import asyncio
import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.body import parse_body, read_body
from server.completion_answer import CompletionAnswer
from server.context import Context, context_of
from server.job import Job
from server.schemas.completion import CompletionRequest
from server.streams import respond

router = APIRouter()

INLINE_BYTES = 2048  # larger bodies are parsed and tokenised off the event loop


def prepare(context: Context, raw: bytes, arrival: float) -> tuple[CompletionRequest, Job]:
    """Everything that happens to a request before the engine hears of it."""
    body = parse_body(raw, CompletionRequest)
    return body, context.converter.completion(body, arrival)


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Complete one or several prompts."""
    context, arrival = context_of(request), time.monotonic()
    raw = await read_body(request, context.settings.max_body_bytes)
    if len(raw) > INLINE_BYTES:
        body, job = await asyncio.to_thread(prepare, context, raw, arrival)
    else:
        body, job = prepare(context, raw, arrival)
    answer = CompletionAnswer(body, job, context.tokenizer, context.fingerprint)
    keep_alive = context.settings.keep_alive_seconds if body.stream else None
    return await respond(request, context.dispatcher, job, answer, keep_alive)
