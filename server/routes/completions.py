"""POST /v1/completions."""

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from server.completion_answer import CompletionAnswer
from server.convert import RequestConverter
from server.generating import generate
from server.preparation import admitted
from server.schemas.completion import CompletionRequest

router = APIRouter()


@router.post("/v1/completions", dependencies=[Depends(admitted)])
async def create_completion(request: Request) -> Response:
    """Complete one or several prompts."""
    return await generate(request, CompletionRequest, RequestConverter.completion, CompletionAnswer)
