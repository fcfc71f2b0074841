"""The published document is kept: no case that schemathesis makes of it, fitting or broken, gives a
5xx, and every status, content type, body and event of a stream is one that the document names.

TREELINE_SCHEMA_CASES sets about how many cases all operations together are sent;
scripts/check_schema sends 2,000.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from pydantic import TypeAdapter
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from server.app import create_app
from server.config_loader import DEFAULT_CONFIG, Override, load_settings
from server.openapi import CHUNKS
from tests.server.conftest import wait_until
from tests.server.fakes import VOCAB, FakeEngine, FakeTokenizer, cycle
from tests.server.sse import events

CASES = int(os.environ.get("TREELINE_SCHEMA_CASES", "180"))
VARIED = 6  # operations with a body or a parameter; the others have one case each
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NAME = "fake/model"
SIZES = {"max_tokens": 40, "max_completion_tokens": 40, "min_tokens": 40, "n": 3, "best_of": 4}
EVENTS = 0  # counted with the statuses: streams whose events were checked
Seen = Counter[tuple[str, int]]
KEY = {"Authorization": "Bearer root"}


def application(engine: FakeEngine) -> FastAPI:
    """The app with everything that it can serve, /admin included."""
    admin = [Override("--admin-key", "server.admin_key", "root")]
    loaded = load_settings(DEFAULT_CONFIG, admin)
    speculation = loaded.engine.speculation
    return create_app(engine, FakeTokenizer(), speculation, loaded.server, resolved=loaded)


DOCUMENT: dict[str, Any] = application(FakeEngine(cycle("abc"))).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.phases.update(phases=["fuzzing"])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TestClient, Seen]]:
    """One app for all cases, and how often each path gave each status."""
    engine = FakeEngine(cycle("ab <>{}[]\"':,0123"), name=NAME)
    seen: Seen = Counter()
    with TestClient(application(engine), raise_server_exceptions=False) as http:
        yield http, seen
        wait_until(lambda: engine.is_idle)
        assert http.get("/health").status_code == 200
    for path in CHUNKS:
        assert seen[path, 200] >= CASES // 120, "too few bodies passed to show anything"
        assert seen[path, 400] > 0
    assert any(seen[path, EVENTS] for path in CHUNKS), "no stream was read"
    num_cases = sum(count for (_, status), count in seen.items() if status != EVENTS)
    print(f"\n{num_cases} cases")  # shown by scripts/check_schema
    for (path, status), count in sorted(seen.items()):
        print(f"{count:6}  {status or 'SSE'}  {path}")


def tamed(body: object, path: str) -> object:
    """A body for the served model, of a size that is done at once and of tokens that exist."""
    body = plain(body)
    if not isinstance(body, dict):
        return body
    small = {k: min(v, SIZES[k]) for k, v in body.items() if k in SIZES and type(v) is int}
    known = {k: plain(body[k], VOCAB) for k in ("prompt", "tokens", "stop_token_ids") if k in body}
    if isinstance(body.get("model"), str):
        known["model"] = NAME
    if path in CHUNKS:
        known["stream"] = body.get("stream", len(body) % 2 == 0)  # more often than by chance
    return body | small | known


def plain(value: Any, end: int | None = None) -> Any:
    """A value with 1 in the place of 1.0, which JSON schemas call an integer too, and with its
    integers below `end`."""
    if isinstance(value, list):
        return [plain(item, end) for item in value]
    if isinstance(value, dict):
        return {name: plain(item, end) for name, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value % end if end and type(value) is int else value


@SCHEMA.parametrize()
@settings(
    max_examples=max(1, CASES // VARIED),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_operation(served: tuple[TestClient, Seen], case: Case) -> None:
    http, seen = served
    path = case.operation.path
    case.body = tamed(case.body, path)
    wanted = case.as_transport_kwargs(base_url="http://testserver", headers=KEY)
    content = wanted.pop("data", None)
    del wanted["cookies"]
    response = http.request(**wanted, content=content)
    seen[path, response.status_code] += 1
    case.validate_response(response, checks=CHECKS)
    check_stream(path, response, seen)


def check_stream(path: str, response: Any, seen: Seen) -> None:
    """Every event of a stream is a chunk of the document, and none is an error."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return
    seen[path, EVENTS] += 1
    schema = TypeAdapter(CHUNKS[path]).json_schema(mode="serialization")
    for chunk in events(response.text):
        jsonschema_rs.validate(schema, chunk)
