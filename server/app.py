"""The application: routes, errors and tracing around one engine and one tokenizer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sse_starlette.sse import AppStatus
from starlette.middleware.cors import CORSMiddleware

from engine import __version__
from engine.api import EngineClient, SpeculationConfig
from server import errors, openapi
from server.api_keys import ApiKeys
from server.auth import Authorisation
from server.context import Context
from server.convert import RequestConverter
from server.dispatcher import Dispatcher
from server.live_speculation import LiveSpeculation
from server.metrics import Metrics
from server.rate_limiter import RateLimiter
from server.routes import admin, chat, completions, health, metrics, models, tokenize, version
from server.settings import ServerSettings, Settings
from server.spans import RequestSpans, make_exporter
from server.text import TextCodec
from server.tracing import RequestTracing


def create_app(
    engine: EngineClient,
    tokenizer: TextCodec,
    speculation: SpeculationConfig,
    settings: ServerSettings | None = None,
    resolved: Settings | None = None,
) -> FastAPI:
    """The HTTP front of a loaded engine. Its lifespan starts the engine and shuts it down.

    `resolved`: the whole configuration, for administrators to read. Raises ConfigError if the
    configured chat template or file of keys cannot be read, or traces cannot be sent.
    """
    settings = settings or ServerSettings()
    keys = ApiKeys(settings)
    live = LiveSpeculation(speculation)
    app = FastAPI(
        title="Treeline",
        version=__version__,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    collected = Metrics(engine.info, speculation.tree.depth)
    app.state.spans = None
    app.state.context = Context(
        engine=engine,
        tokenizer=tokenizer,
        live_speculation=live,
        settings=settings,
        version=__version__,
        converter=RequestConverter(tokenizer, engine.info, live, settings),
        metrics=collected,
        dispatcher=Dispatcher(engine, collected, settings),
        resolved=resolved,
    )
    # The last added is the outermost: what is refused has an id and a log line too.
    limiter = RateLimiter(settings.rate_limit) if settings.rate_limit else None
    app.add_middleware(Authorisation, keys=keys, limiter=limiter, metrics=collected)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "Retry-After"),
        )
    if settings.otlp_endpoint is not None:
        exporter = make_exporter(settings.otlp_endpoint)
        app.state.spans = RequestSpans(exporter, engine.info.model_name)
    app.add_middleware(RequestTracing, spans=app.state.spans)
    errors.install(app, collected.count_rejected)
    openapi.install(app)
    for route in (completions, chat, models, tokenize, health, metrics, version, admin):
        app.include_router(route.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    # By default sse-starlette cuts all streams at SIGTERM; draining means that they may end.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    context.dispatcher.start()
    try:
        yield
    finally:
        await asyncio.to_thread(context.engine.shutdown, context.settings.drain_seconds)
        if app.state.spans is not None:
            await asyncio.to_thread(app.state.spans.shutdown)
