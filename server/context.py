"""What the routes share, made once per app and passed to them; there are no globals."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import Request

from engine.api import EngineClient, EngineInfo, SpeculationConfig
from server.convert import RequestConverter
from server.dispatcher import Dispatcher
from server.live_speculation import LiveSpeculation
from server.metrics import Metrics
from server.schemas.generation import GenerationRequest
from server.settings import ServerSettings, Settings
from server.text import TextCodec


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one app."""

    engine: EngineClient
    tokenizer: TextCodec
    live_speculation: LiveSpeculation
    settings: ServerSettings
    version: str
    converter: RequestConverter
    metrics: Metrics
    dispatcher: Dispatcher
    resolved: Settings | None = None  # the whole configuration, if the app was made from one
    # The page of /metrics, where other replicas' series belong on it too.
    gather_metrics: Callable[[], Awaitable[bytes]] | None = None

    @property
    def speculation(self) -> SpeculationConfig:
        """The default method, the bounds and each method's constants, as they are now."""
        return self.live_speculation.current

    @property
    def info(self) -> EngineInfo:
        """Facts about the served model."""
        return self.engine.info

    def keep_alive(self, body: GenerationRequest) -> float | None:
        """Seconds between a stream's comments (0: none); None for a whole answer."""
        return self.settings.keep_alive_seconds if body.stream else None

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: changes whenever equal seeds may give other text."""
        text = repr((self.info.architecture, self.info.dtype, self.info.device, self.speculation))
        return f"treeline-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def context_of(request: Request) -> Context:
    """The context of the app that serves `request`."""
    context: Context = request.app.state.context
    return context
