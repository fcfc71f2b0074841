"""What the generating routes have in common: from a raw body to an answer. They differ in the
body's schema, in what it is converted to, and in the answer's shape."""

import time
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from starlette.responses import Response

from server.answer import Answer
from server.body import parse_body
from server.context import Context, context_of
from server.convert import RequestConverter
from server.job import Job
from server.preparation import prepared
from server.schemas.generation import GenerationRequest
from server.streams import respond
from server.text import TextCodec

Body = TypeVar("Body", bound=GenerationRequest)


async def generate(
    request: Request,
    schema: type[Body],
    convert: Callable[[RequestConverter, Body, float], Job],
    answer_type: Callable[[Body, Job, TextCodec, str], Answer],
) -> Response:
    """Serve one request, whole or streamed. `convert` gets the time of arrival, seconds of
    time.monotonic(). Raises ApiError or RequestError for a body that cannot be served."""
    arrival = time.monotonic()

    def prepare(context: Context, raw: bytes) -> tuple[Body, Job]:
        body = parse_body(raw, schema)
        return body, convert(context.converter, body, arrival)

    body, job = await prepared(request, prepare)
    context = context_of(request)
    answer = answer_type(body, job, context.tokenizer, context.fingerprint)
    return await respond(request, context, job, answer, context.keep_alive(body))
