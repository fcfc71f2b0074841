"""The published document: it names every body, and every reference in it leads somewhere."""

from typing import Any

import httpx

from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest


def references(node: Any) -> set[str]:
    """All `$ref` targets below a node."""
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(item) for item in node.values()))
    if isinstance(node, list):
        return set().union(*(references(item) for item in node))
    return set()


async def test_document(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert references(document) <= {f"#/components/schemas/{name}" for name in schemas}
    for model in (CompletionRequest, ChatRequest):
        assert set(schemas[model.__name__]["properties"]) == set(model.model_fields)
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["required"]
        answers = operation["responses"]
        assert references(answers["200"])
        assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(answers)
        assert ("422" in answers) == path.startswith("/v1/")  # a grammar's dead end, no bad body
