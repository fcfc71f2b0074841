"""GET /v1/models and /v1/models/{id}: the one model, and how it speculates."""

from typing import Any

from fastapi import APIRouter, Request

from engine.api import METHODS, RequestError, SpeculationConfig, SpeculationPlan
from server.context import Context, context_of
from server.convert import model_not_found

router = APIRouter()


def describe(context: Context) -> dict[str, Any]:
    """OpenAI's model object, with this server's extensions."""
    info, speculation = context.info, context.speculation
    plans = {method: plan for method in METHODS if (plan := _plan(speculation, method))}
    sizes = {
        method: {"width": plan.width, "depth": plan.depth, "budget": plan.budget}
        for method, plan in plans.items()
    }
    bounds = speculation.tree
    return {
        "id": info.model_name,
        "object": "model",
        "created": info.created,
        "owned_by": "treeline",
        "max_model_len": info.max_model_len,
        "speculation": {
            "method": speculation.method,
            **sizes[speculation.method],
            "bounds": {"width": bounds.width, "depth": bounds.depth, "budget": bounds.budget},
            "methods": sizes,
            "exact": info.is_exact,
        },
    }


def _plan(speculation: SpeculationConfig, method: str) -> SpeculationPlan | None:
    """What a request gets that names this method only; None if it would be refused."""
    try:
        return speculation.resolve(method)
    except RequestError:
        return None


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """All served models: one."""
    return {"object": "list", "data": [describe(context_of(request))]}


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> dict[str, Any]:
    """One model, by an id that may hold slashes."""
    context = context_of(request)
    if model_id != context.info.model_name:
        raise model_not_found(model_id)
    return describe(context)
