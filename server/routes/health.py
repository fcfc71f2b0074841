"""GET /health and /ready: is it alive, and should it be sent requests. Both read a few numbers and
wait for nothing, so load never fails them."""

from typing import Any

from fastapi import APIRouter, Request

from engine.api import EngineStatus
from server.context import Context, context_of
from server.errors import unavailable

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """Liveness: the process answers and the engine's thread runs. A 503 will not pass by itself."""
    if not context_of(request).engine.status().is_alive:
        raise unavailable("The engine has stopped.")
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Readiness: alive, not shutting down, and the engine's loop advances while work waits."""
    status = check_ready(context_of(request))
    return {"status": "ok", "running": status.num_running, "waiting": status.num_waiting}


def check_ready(context: Context) -> EngineStatus:
    """The engine's status. Raises ApiError 503 unless requests should be sent here."""
    status = context.engine.status()
    if not status.is_alive:
        raise unavailable("The engine has stopped.")
    if status.is_draining or context.dispatcher.is_draining:
        raise unavailable("The server is shutting down.")
    has_work = status.num_running + status.num_waiting + context.dispatcher.num_waiting > 0
    if has_work and status.seconds_since_step > context.settings.ready_seconds:
        raise unavailable("The engine has made no step for too long.")
    return status
