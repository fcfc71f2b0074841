"""OpenTelemetry traces: one span per request, in the client's own trace, without a word of text."""

import asyncio
import builtins
import re
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from engine.errors import ConfigError
from server.cli import main
from server.settings import ServerSettings
from server.spans import make_exporter
from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine

SETTINGS = ServerSettings(otlp_endpoint="http://collector:4318")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
SECRET = "the word is mellon"
BODY: dict[str, Any] = {"model": "fake/model", "prompt": SECRET, "max_tokens": 6}


async def spans_of(
    monkeypatch: pytest.MonkeyPatch, *requests: dict[str, Any]
) -> tuple[ReadableSpan, ...]:
    """What a collector is sent for these requests, each given to httpx."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr("server.app.make_exporter", lambda _: memory)
    async with client_of(build(FakeEngine(lambda *_: ord("q")), SETTINGS)) as http:
        for request in requests:
            await http.request(**{"method": "POST", "url": "/v1/completions", **request})
    return memory.get_finished_spans()


async def test_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stream, chat = await spans_of(
        monkeypatch,
        {"json": {**BODY, "n": 2, "speculation": {"method": "ptd"}}, "headers": PARENT},
        {"json": {**BODY, "stream": True}},
        {
            "url": "/v1/chat/completions",
            "json": {"model": "fake/model", "messages": [{"role": "user", "content": SECRET}]},
        },
    )
    facts = dict(whole.attributes or {})
    assert (whole.name, whole.kind) == ("POST /v1/completions", SpanKind.SERVER)
    assert whole.status.status_code is StatusCode.UNSET
    assert whole.parent is not None
    assert f"{whole.parent.trace_id:032x}" == f"{whole.context.trace_id:032x}" == TRACE
    assert facts["gen_ai.operation.name"] == "text_completion"
    assert facts["gen_ai.request.model"] == facts["gen_ai.response.model"] == "fake/model"
    assert facts["gen_ai.response.finish_reasons"] == ("length", "length")
    assert facts["gen_ai.usage.input_tokens"] == len(SECRET)
    assert facts["gen_ai.usage.output_tokens"] == 12
    assert facts["gen_ai.response.time_to_first_chunk"] >= 0.0
    assert facts["treeline.speculation.method"] == "ptd"
    assert facts["treeline.speculation.tau"] == 3.0
    assert facts["http.response.status_code"] == 200
    assert str(facts["gen_ai.response.id"]).startswith("cmpl-")
    assert whole.resource.attributes["service.name"] == "treeline"
    assert stream.parent is None
    assert stream.attributes is not None
    assert stream.attributes["gen_ai.request.stream"] is True
    assert stream.attributes["gen_ai.usage.output_tokens"] == 6
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    for span in (whole, stream, chat):
        assert "mellon" not in span.to_json()
        assert "qq" not in span.to_json()


async def test_failures_and_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, unknown = await spans_of(
        monkeypatch,
        {"json": {**BODY, "max_tokens": -1}, "headers": {"traceparent": "00-garbage"}},
        {"url": "/wp-admin/mellon"},
        {"method": "GET", "url": "/health"},
        {"method": "GET", "url": "/metrics"},
    )
    assert bad.parent is None
    assert bad.attributes is not None
    assert bad.attributes["http.response.status_code"] == 400
    assert bad.status.status_code is StatusCode.UNSET  # the client's fault
    assert unknown.name == "POST"
    assert "mellon" not in unknown.to_json()


async def test_what_fails_here_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = InMemorySpanExporter()
    monkeypatch.setattr("server.app.make_exporter", lambda _: memory)
    engine = FakeEngine(lambda *_: ord("q"))
    caplog.set_level("INFO", "treeline.access")
    async with client_of(build(engine, SETTINGS)) as http:
        engine.fail_next = "a fault on purpose"
        assert (await http.post("/v1/completions", json=BODY)).status_code == 500
        await asyncio.sleep(0)
    (span,) = memory.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    (line,) = [r for r in caplog.records if r.name == "treeline.access"]
    assert vars(line)["fields"]["trace_id"] == f"{span.context.trace_id:032x}"


async def test_off_by_default() -> None:
    app = build(FakeEngine(lambda *_: ord("q")))
    async with client_of(app) as http:
        await http.post("/v1/completions", json=BODY)
    assert app.state.spans is None


def test_without_the_packages_the_start_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=re.escape("pip install 'treeline[otel]'")):
        make_exporter("http://collector:4318")
    assert main(["serve", "--set", "server.otlp_endpoint=http://collector:4318"]) == 2
    assert capsys.readouterr().err.startswith("treeline: server.otlp_endpoint: ")


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint must be an http"):
        ServerSettings(otlp_endpoint="collector:4318")
