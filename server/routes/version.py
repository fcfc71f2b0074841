"""GET /version."""

from fastapi import APIRouter, Request

from server.context import context_of

router = APIRouter()


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """The server's version."""
    return {"version": context_of(request).version}
