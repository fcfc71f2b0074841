"""POST /v1/completions."""

import time

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from server.body import parse_body
from server.completion_answer import CompletionAnswer
from server.context import Context, context_of
from server.job import Job
from server.preparation import admitted, prepared
from server.schemas.completion import CompletionRequest
from server.streams import respond

router = APIRouter()


@router.post("/v1/completions", dependencies=[Depends(admitted)])
async def create_completion(request: Request) -> Response:
    """Complete one or several prompts."""
    arrival = time.monotonic()

    def prepare(context: Context, raw: bytes) -> tuple[CompletionRequest, Job]:
        body = parse_body(raw, CompletionRequest)
        return body, context.converter.completion(body, arrival)

    body, job = await prepared(request, prepare)
    context = context_of(request)
    answer = CompletionAnswer(body, job, context.tokenizer, context.fingerprint)
    return await respond(request, context, job, answer, context.keep_alive(body))
