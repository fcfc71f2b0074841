"""GET /metrics, as a plain route: a mounted app would answer with a redirect."""

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from server.context import context_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All series in Prometheus's text format."""
    context = context_of(request)
    if context.gather_metrics is not None:
        page = await context.gather_metrics()
    else:
        page = context.metrics.render(context.engine.status())
    return Response(page, media_type=CONTENT_TYPE_LATEST)
