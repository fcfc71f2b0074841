"""POST /v1/chat/completions."""

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from server.chat_answer import ChatAnswer
from server.convert import RequestConverter
from server.generating import generate
from server.preparation import admitted
from server.schemas.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions", dependencies=[Depends(admitted)])
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    return await generate(request, ChatRequest, RequestConverter.chat, ChatAnswer)
