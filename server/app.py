"""The application: routes, errors and tracing around one engine and one tokenizer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from engine import __version__
from engine.api import EngineClient, SpeculationConfig
from server import errors, openapi
from server.context import Context
from server.convert import RequestConverter
from server.dispatcher import Dispatcher
from server.metrics import Metrics
from server.routes import chat, completions, health, metrics, models, tokenize, version
from server.settings import ServerSettings
from server.text import TextCodec
from server.tracing import RequestTracing


def create_app(
    engine: EngineClient,
    tokenizer: TextCodec,
    speculation: SpeculationConfig,
    settings: ServerSettings | None = None,
) -> FastAPI:
    """The HTTP front of a loaded engine. Its lifespan starts the engine and shuts it down.

    Raises ConfigError if the configured chat template cannot be read.
    """
    settings = settings or ServerSettings()
    app = FastAPI(
        title="Treeline",
        version=__version__,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    collected = Metrics(engine.info.model_name, speculation.tree.depth)
    app.state.context = Context(
        engine=engine,
        tokenizer=tokenizer,
        speculation=speculation,
        settings=settings,
        version=__version__,
        converter=RequestConverter(tokenizer, engine.info, speculation, settings),
        metrics=collected,
        dispatcher=Dispatcher(engine, collected),
    )
    app.add_middleware(RequestTracing)
    errors.install(app)
    openapi.install(app)
    for route in (completions, chat, models, tokenize, health, metrics, version):
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
