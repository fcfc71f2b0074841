"""Optional OpenTelemetry traces: one span per request, sent to a collector in the background.

A span says what the request's log line says, under the names that GenAI tools look for, and no text
of a client. A client's `traceparent` makes it part of the client's own trace. The packages come
with the extra `otel`, which nothing else needs, so they are imported only where an endpoint is set.
"""

from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from engine import __version__
from engine.errors import ConfigError
from server.access_log import QUIET, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat"}
# A fact of the log line -> the span's attribute. Those of GenAI's conventions begin with gen_ai.
_ATTRIBUTES = {
    "response_id": "gen_ai.response.id",
    "stream": "gen_ai.request.stream",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "ttft_seconds": "gen_ai.response.time_to_first_chunk",
    "queue_seconds": "treeline.queue_seconds",
    "method": "treeline.speculation.method",
    "tau": "treeline.speculation.tau",
    "error": "error.type",
}


def make_exporter(endpoint: str) -> "SpanExporter":
    """Sends spans to a collector with this base URL. Raises ConfigError without the packages."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        message = "server.otlp_endpoint: traces need more packages: pip install 'treeline[otel]'"
        raise ConfigError(message) from error
    exporter: SpanExporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    return exporter


class RequestSpans:
    """The spans of one server. Neither `begin` nor `end` ever waits for the collector."""

    def __init__(self, exporter: "SpanExporter", model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The environment's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before these.
        own = Resource({"service.name": "treeline", "service.version": __version__})
        detected = Resource.create()
        is_named = not str(detected.attributes["service.name"]).startswith("unknown_service")
        resource = own.merge(detected) if is_named else detected.merge(own)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("treeline", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def begin(self, scope: Scope, record: RequestRecord) -> "Span | None":
        """The span of a request that has just come; None for a probe. The record learns its trace,
        so that the log line names it."""
        if record.path in QUIET:
            return None
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(Headers(scope=scope))
        method = record.http_method
        span = self._tracer.start_span(method, parent, SpanKind.SERVER)
        record.facts["trace_id"] = f"{span.get_span_context().trace_id:032x}"
        return span

    def end(self, span: "Span", scope: Scope, record: RequestRecord) -> None:
        """Fill in what is known of a request that has ended, and hand its span over."""
        from opentelemetry.trace import Status, StatusCode

        route = getattr(scope.get("route"), "path", None)  # a client may make up any other path
        if route is not None:
            span.update_name(f"{record.http_method} {route}")
        span.set_attributes(self._attributes(record, route))
        if record.status >= 500 or "error" in record.facts:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _attributes(self, record: RequestRecord, route: str | None) -> dict[str, Any]:
        facts = record.facts
        found: dict[str, Any] = {
            "http.request.method": record.http_method,
            "treeline.request_id": record.request_id,
        }
        if record.status:
            found["http.response.status_code"] = record.status
        if route is not None:
            found["http.route"] = route
        if route in _OPERATIONS:
            found["gen_ai.operation.name"] = _OPERATIONS[route]
            found["gen_ai.provider.name"] = "treeline"
        if "response_id" in facts:  # it was for the model that is served
            found["gen_ai.request.model"] = found["gen_ai.response.model"] = self._model_name
            found["gen_ai.response.finish_reasons"] = facts["finish_reason"].split(",")
        for fact, name in _ATTRIBUTES.items():
            if facts.get(fact) is not None:
                found[name] = facts[fact]
        return found

    def shutdown(self) -> None:
        """Send what is left and stop. Waits for the collector, some seconds at most."""
        self._provider.shutdown()
