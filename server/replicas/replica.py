"""One replica: one engine and the whole application of `treeline serve`, run by Ray Serve."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from fastapi import FastAPI
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.api import RequestError, load_engine, spare_the_collector
from server.app import create_app
from server.context import Context
from server.errors import ApiError, unavailable
from server.live_speculation import LiveSpeculation
from server.log_format import configure_logging
from server.replicas.exposition import merge_expositions
from server.replicas.front import REPLICA_HEADER
from server.routes.health import check_ready
from server.settings import Settings

logger = logging.getLogger("treeline.http")

NAME = "treeline"  # of the application and of its one deployment
GATHER_SECONDS = 5.0  # for all replicas to tell their metrics


class Replica:
    """What Ray makes one of per replica, with `serve.ingress()` around it."""

    def __init__(self, settings: Settings) -> None:
        """Load the model. Raises ModelError, after which Ray tries again elsewhere."""
        configure_logging(settings.server.log_format)
        self._settings = settings
        self._name: str = serve.get_replica_context().replica_tag
        self._engine = load_engine(settings.engine)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The application, once the model is there. Its lifespan starts and stops the engine."""
        engine, settings = self._engine, self._settings
        app = create_app(
            engine.client,
            engine.tokenizer,
            settings.engine.speculation,
            settings.server,
            settings,
        )
        self._context: Context = replace(
            app.state.context,
            live_speculation=_FixedSpeculation(settings.engine.speculation),
            gather_metrics=self._gather_metrics,
        )
        app.state.context = self._context
        app.add_middleware(_NamesReplica, name=self._name)
        spare_the_collector()
        return app

    async def check_health(self) -> None:
        """Raises RuntimeError unless ready; Ray then replaces the replica."""
        try:
            check_ready(self._context)
        except ApiError as error:  # which does not pickle
            raise RuntimeError(error.message) from None

    async def expose(self) -> tuple[str, bytes]:
        """This replica's name and its metrics, which belong to its event loop."""
        return self._name, self._context.metrics.render(self._engine.client.status())

    async def _gather_metrics(self) -> bytes:
        """The metrics of all replicas that can tell them: one may just have died."""
        broadcast = serve.get_deployment_handle(NAME, NAME).broadcast("expose")
        pages = {}
        asked = broadcast.results_async(timeout_s=GATHER_SECONDS, return_exceptions=True)
        try:
            all_told = await asked
        except TimeoutError as error:
            raise unavailable("Not all replicas told their metrics in time.") from error
        for told in all_told:
            if isinstance(told, BaseException):
                logger.warning("a replica did not tell its metrics: %s", told)
            else:
                name, page = told
                pages[name] = page
        return merge_expositions(pages)


class _FixedSpeculation(LiveSpeculation):
    """A change would reach the replica that happens to be asked, and none that starts later."""

    def change(self, method: str | None, bounds: Mapping[str, int]) -> None:
        """Always raises RequestError."""
        names = ", ".join(["method"] * (method is not None) + sorted(bounds)) or "nothing"
        raise RequestError(
            f"With replicas the configuration alone sets {names}: change it there and deploy again."
        )


class _NamesReplica:
    """ASGI middleware: every answer says which replica gave it."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REPLICA_HEADER] = self._name
            await send(message)

        await self._app(scope, receive, named_send)
