"""The published contract: request bodies are read raw, so their schemas are added to the document
that FastAPI makes of the routes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest
from server.schemas.tokenize import DetokenizeRequest, TokenizeMessages, TokenizeText

BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/completions": (CompletionRequest,),
    "/v1/chat/completions": (ChatRequest,),
    "/tokenize": (TokenizeText, TokenizeMessages),
    "/detokenize": (DetokenizeRequest,),
}
_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def install(app: FastAPI) -> None:
    """Serve the completed document at /openapi.json."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    models = [(model, "validation") for group in BODIES.values() for model in group]
    _, definitions = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    components.clear()  # FastAPI's own validation errors, which never go out
    components |= definitions["$defs"] | {"Error": _ERROR}
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "An error.", "content": error}
            if path in BODIES:
                operation["requestBody"] = _body(BODIES[path])
    return schema


def _body(models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    references = [{"$ref": _REF.format(model=model.__name__)} for model in models]
    body = references[0] if len(references) == 1 else {"anyOf": references}
    return {"required": True, "content": {"application/json": {"schema": body}}}
