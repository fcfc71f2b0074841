"""POST /v1/chat/completions."""

import time

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from server.body import parse_body
from server.chat_answer import ChatAnswer
from server.context import Context, context_of
from server.job import Job
from server.preparation import admitted, prepared
from server.schemas.chat import ChatRequest
from server.streams import respond

router = APIRouter()


@router.post("/v1/chat/completions", dependencies=[Depends(admitted)])
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    arrival = time.monotonic()

    def prepare(context: Context, raw: bytes) -> tuple[ChatRequest, Job]:
        body = parse_body(raw, ChatRequest)
        return body, context.converter.chat(body, arrival)

    body, job = await prepared(request, prepare)
    context = context_of(request)
    answer = ChatAnswer(body, job, context.tokenizer, context.fingerprint)
    return await respond(request, context, job, answer, context.keep_alive(body))
