"""GET /health: 200 only while the engine's loop advances."""

from typing import Any

from fastapi import APIRouter, Request

from server.context import context_of
from server.errors import unavailable

router = APIRouter()

# Seconds without a step, while work waits, that mean a hang. The longest honest step is a prompt
# chunk on a slow CPU.
STALL_SECONDS = 120.0


@router.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """Readiness. It asks the loop's heartbeat and not for an answer, so load never fails it."""
    status = context_of(request).engine.status()
    if not status.is_alive:
        raise unavailable("The engine has stopped.")
    if status.is_draining:
        raise unavailable("The server is shutting down.")
    has_work = status.num_running + status.num_waiting > 0
    if has_work and status.seconds_since_step > STALL_SECONDS:
        raise unavailable("The engine has made no step for too long.")
    return {"status": "ok", "running": status.num_running, "waiting": status.num_waiting}
