"""The published contract: request bodies are read raw and answers are built as plain dicts, so the
schemas of both are added to the document that FastAPI makes of the routes."""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from server.auth import ADMIN_PREFIX, OPEN_PATHS
from server.schemas import answers
from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest
from server.schemas.speculation_change import SpeculationChange
from server.schemas.tokenize import DetokenizeRequest, TokenizeMessages, TokenizeText

BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/completions": (CompletionRequest,),
    "/v1/chat/completions": (ChatRequest,),
    "/tokenize": (TokenizeText, TokenizeMessages),
    "/detokenize": (DetokenizeRequest,),
    "/admin/speculation": (SpeculationChange,),
}
ANSWERS: dict[str, Any] = {
    "/v1/completions": answers.Completion,
    "/v1/chat/completions": answers.ChatCompletion,
    "/v1/models": answers.ModelList,
    "/v1/models/{model_id}": answers.ModelAnswer,
    "/tokenize": answers.Tokens,
    "/detokenize": answers.Text,
    "/health": answers.Health,
    "/ready": answers.Readiness,
    "/version": answers.Version,
    "/admin/config": answers.ConfigAnswer,
    "/admin/speculation": answers.ModelSpeculation,
}
CHUNKS: dict[str, Any] = {
    "/v1/completions": answers.Completion,
    "/v1/chat/completions": answers.ChatCompletionChunk,
}
_FAILURES = {
    "400": "The request itself is wrong.",
    "401": "A valid API key is missing.",
    "403": "The key is no administrator's.",
    "404": "There is no such model.",
    "408": "The request took too long.",
    "413": "The body is too large.",
    "415": "The body is no JSON in UTF-8.",
    "422": "The answer cannot go on as its grammar demands.",
    "429": "Too many requests.",
    "500": "The server failed.",
    "503": "The server cannot answer now; another attempt may succeed.",
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

_Key = tuple[str, Literal["validation", "serialization"]]
_Schemas = dict[_Key, dict[str, Any]]


def install(app: FastAPI) -> None:
    """Serve the completed document at /openapi.json."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas, definitions = _schemas()
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.clear()  # FastAPI's own validation errors, which never go out
    components |= definitions | {"Error": _ERROR}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _responses(path, method, schemas)
            if path in BODIES:
                bodies = [schemas[name, "validation"] for name in _names(path)]
                body = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
                operation["requestBody"] = {"required": True, "content": _json(body)}
    return document


def _names(path: str) -> list[str]:
    return [f"{path} {model.__name__}" for model in BODIES[path]]


def _schemas() -> tuple[_Schemas, dict[str, Any]]:
    """The schema of every body, answer and chunk, and the definitions that they refer to."""
    inputs: list[tuple[str, Literal["validation", "serialization"], TypeAdapter[Any]]] = []
    for path, models in BODIES.items():
        pairs = zip(_names(path), models, strict=True)
        inputs += [(name, "validation", TypeAdapter(model)) for name, model in pairs]
    for path, answer in ANSWERS.items():
        inputs.append((path, "serialization", TypeAdapter(answer)))
    for path, chunk in CHUNKS.items():
        inputs.append((f"{path} chunk", "serialization", TypeAdapter(chunk)))
    schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    return schemas, rest["$defs"]


def _responses(path: str, method: str, schemas: _Schemas) -> dict[str, Any]:
    if path in ANSWERS:
        content = _json(schemas[path, "serialization"])
    else:
        content = {"text/plain": {"schema": {"type": "string"}}}
    if path in CHUNKS:
        name = schemas[f"{path} chunk", "serialization"]["$ref"].rpartition("/")[2]
        text = f"Events whose data is a {name} in JSON; the last one's data is [DONE]."
        content["text/event-stream"] = {"schema": {"description": text}}
    error = _json({"$ref": _REF.format(model="Error")})
    failures = {
        status: {"description": _FAILURES[status], "content": error}
        for status in sorted(_statuses(path, method))
    }
    return {"200": {"description": "The answer.", "content": content}, **failures}


def _statuses(path: str, method: str) -> set[str]:
    """The failures that an operation may answer with."""
    found = {"500", "503"}
    if path not in OPEN_PATHS:
        found |= {"401"}
    if path.startswith(ADMIN_PREFIX):
        found |= {"403"}
    elif method == "post" or "{" in path:
        found |= {"404"}
    if method == "post":
        found |= {"400", "408", "413", "415", "429"}
    if path in CHUNKS:
        found |= {"422"}
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
