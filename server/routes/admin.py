"""/admin: what is configured, and changes of it while serving. server/auth.py lets only an
administrator's key through."""

from typing import Any

from fastapi import APIRouter, Request

from server.body import parse_body, read_body
from server.context import Context, context_of
from server.errors import unavailable
from server.routes.models import describe
from server.schemas.speculation_change import SpeculationChange
from server.settings import SCHEMA, SECRETS

router = APIRouter(prefix="/admin")

HERE = "POST /admin/speculation"


@router.get("/config")
async def show_config(request: Request) -> dict[str, Any]:
    """Every key with its value now and what set it; keys that open the server are hidden."""
    context = context_of(request)
    return {path: _entry(context, path) for path in SCHEMA.keys}


@router.post("/speculation")
async def change_speculation(request: Request) -> dict[str, Any]:
    """Set the default method and the bounds of trees for requests to come."""
    context = context_of(request)
    raw = await read_body(request, context.settings.max_body_bytes)
    change = parse_body(raw, SpeculationChange)
    bounds = {"width": change.width, "depth": change.depth, "budget": change.budget}
    context.live_speculation.change(
        change.method, {name: value for name, value in bounds.items() if value is not None}
    )
    speculation: dict[str, Any] = describe(context)["speculation"]
    return speculation


def _entry(context: Context, path: str) -> dict[str, Any]:
    resolved = context.resolved
    if resolved is None:
        raise unavailable("This server was not started from a configuration.")
    value, origin = resolved.value(path), resolved.origins.get(path, "default")
    section, _, key = path.partition(".")
    if section == "speculation" and key in context.live_speculation.changed:
        value, origin = context.speculation, HERE
        for name in key.split("."):
            value = getattr(value, name)
    if path in SECRETS and value is not None:
        value = "hidden"
    return {"value": value, "origin": origin}
