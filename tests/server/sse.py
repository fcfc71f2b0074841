"""Readers of event streams, as strict as the strictest client."""

import json
from typing import Any

import httpx


def events(raw: str) -> list[dict[str, Any]]:
    """The JSON payloads of a stream, after checking its framing to the byte."""
    assert raw.endswith("data: [DONE]\n\n"), raw[-80:]
    assert "\r" not in raw
    blocks = raw.split("\n\n")
    assert blocks.pop() == ""
    payloads = []
    for block in blocks:
        data = [line for line in block.split("\n") if not line.startswith(":")]
        assert len(data) == 1, block
        assert data[0].startswith("data: "), block
        payloads.append(data[0].removeprefix("data: "))
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload, parse_constant=_refuse) for payload in payloads]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


async def stream(http: httpx.AsyncClient, path: str = "/v1/completions", **body: Any) -> list[dict]:
    """POST with `stream: true` and read it all."""
    response = await http.post(path, json={"model": "fake/model", "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


async def complete(http: httpx.AsyncClient, path: str = "/v1/completions", **body: Any) -> dict:
    """POST and read the whole answer."""
    response = await http.post(path, json={"model": "fake/model", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = json.loads(response.text, parse_constant=_refuse)
    return answer


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice."""
    return "".join(
        choice["text"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )
