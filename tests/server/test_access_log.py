"""One line per request, for people or machines, without the text of prompts."""

import json
import logging
from typing import Any

import httpx
import pytest

from server.log_format import ConsoleFormatter, JsonFormatter
from server.settings import ServerSettings
from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine
from tests.server.sse import complete, stream


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The lines of the access log, as they come."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    access = logging.getLogger("treeline.access")
    monkeypatch.setattr(access, "handlers", [handler])
    monkeypatch.setattr(access, "level", logging.INFO)
    access.manager._clear_cache()
    return found


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return found


async def test_a_whole_answer(client: httpx.AsyncClient, lines: list[logging.LogRecord]) -> None:
    wish = {"method": "ptd", "stats": True}
    answer = await complete(client, prompt="secret words", max_tokens=7, n=2, speculation=wish)
    (line,) = lines
    known = fields(line)
    assert known["message"] == "POST /v1/completions"
    assert (known["status"], known["stream"], known["method"]) == (200, False, "ptd")
    assert known["response_id"] == answer["id"]
    assert known["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert known["completion_tokens"] == 14
    assert known["finish_reason"] == "length,length"
    assert known["tau"] == round(answer["speculation"]["tau"], 3)
    assert 0 <= known["queue_seconds"] <= known["ttft_seconds"] <= known["seconds"] + 0.01
    assert "secret" not in JsonFormatter().format(line) + ConsoleFormatter().format(line)


async def test_a_stream_is_logged_once_when_it_ends(
    client: httpx.AsyncClient, engine: FakeEngine, lines: list[logging.LogRecord]
) -> None:
    await stream(client, prompt="p", max_tokens=3)
    engine.fail_next = "a fault"
    await stream(client, prompt="p", max_tokens=3)
    first, second = (fields(line) for line in lines)
    assert (first["stream"], first["finish_reason"], first["completion_tokens"]) == (
        True,
        "length",
        3,
    )
    assert "error" not in first
    assert (second["error"], second["finish_reason"]) == ("internal_error", "none")


async def test_refusals_have_lines_and_probes_have_none(
    client: httpx.AsyncClient, lines: list[logging.LogRecord]
) -> None:
    for path in ("/health", "/ready", "/metrics"):
        await client.get(path)
    assert not lines
    await client.post("/v1/completions", json={}, headers={"x-request-id": "mine"})
    (line,) = lines
    assert (fields(line)["status"], fields(line)["request_id"]) == (400, "mine")


async def test_prompts_on_request(engine: FakeEngine, lines: list[logging.LogRecord]) -> None:
    async with client_of(build(engine, ServerSettings(log_prompts=True))) as http:
        await complete(http, prompt=["one\ntwo", "three"], n=2, max_tokens=1)
    (line,) = lines
    assert fields(line)["prompts"] == ["one\ntwo", "three"]
    assert "\n" not in ConsoleFormatter().format(line)


@pytest.mark.parametrize("path", ["/a\nERROR forged", "/\x1b[31m", '/" status=200', "/é"])
def test_no_path_forges_a_line(path: str) -> None:
    record = logging.makeLogRecord(
        {"msg": "GET %s", "args": (path,), "levelname": "INFO", "name": "treeline.access"}
    )
    record.fields = {"request_id": path, "status": 404}
    for text in (ConsoleFormatter().format(record), JsonFormatter().format(record)):
        assert text.isprintable()
    assert json.loads(JsonFormatter().format(record))["message"] == f"GET {path}"


def test_the_console_line_reads_at_a_glance() -> None:
    record = logging.makeLogRecord({"msg": "GET /x", "levelname": "INFO", "name": "a.b"})
    record.created, record.msecs = 0.0, 5.0
    record.fields = {"request_id": "req-1", "status": 200, "tau": 1.5, "note": "two words"}
    assert ConsoleFormatter().format(record) == (
        "1970-01-01T00:00:00.005Z INFO a.b GET /x "
        'request_id=req-1 status=200 tau=1.5 note="two words"'
    )


def test_exceptions_are_kept() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.makeLogRecord({"msg": "failed", "levelname": "ERROR", "exc_info": info})
    assert "ValueError: why" in ConsoleFormatter().format(record)
    assert "ValueError: why" in json.loads(JsonFormatter().format(record))["exception"]
