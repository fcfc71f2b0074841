"""What the server is told before it starts: one resolved configuration that knows its origins.

It imports engine.config, not engine.api, so that a wrong key is reported without waiting for torch.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from engine.config import EngineConfig, ModelConfig, OneOf, Range, SpeculationConfig
from engine.errors import ConfigError
from server.config_file import parse_value
from server.config_schema import Schema


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP side: where it listens and what one request may ask for."""

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000  # 0: any free port
    max_body_bytes: Annotated[int, Range(1024)] = 8 * 1024 * 1024
    max_prompts: Annotated[int, Range(1)] = 128  # prompts in one request's list
    max_n: Annotated[int, Range(1)] = 16  # completions of one prompt
    max_queued_requests: Annotated[int, Range(0)] = 256  # sequences that may wait for a slot
    max_queued_tokens: Annotated[int, Range(1)] = 262144  # prompt tokens that may wait
    request_seconds: Annotated[float, Range(0.0)] = 600.0  # arrival to last byte; 0: no limit
    stall_seconds: Annotated[float, Range(1, 3600)] = 60.0  # for a stream's client to take a chunk
    ready_seconds: Annotated[float, Range(0.01, 3600)] = 120.0  # without a step, while work waits
    drain_seconds: Annotated[int, Range(1, 3600)] = 30  # on SIGTERM, for what still runs
    keep_alive_seconds: Annotated[float, Range(0, 3600)] = 0.0  # between SSE comments; 0: none
    chat_template: Path | None = None  # a Jinja file, instead of the model's own template
    # How the model writes tool calls; auto: as its chat template asks it to.
    tool_parser: Annotated[str, OneOf(("auto", "hermes", "llama3_json", "json"))] = "auto"
    api_key: str | None = field(default=None, repr=False)  # one key that requests must bear
    admin_key: str | None = field(default=None, repr=False)  # opens /admin too; None: nothing does
    api_key_file: Path | None = None  # more keys, one a line
    rate_limit: str | None = None  # such as "60/minute", for each key or else each address
    cors_origins: tuple[str, ...] = ()  # of pages whose scripts may ask; "*": any
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    log_format: Annotated[str, OneOf(("console", "json"))] = "console"
    otlp_endpoint: str | None = None  # a collector's base URL; None: no traces
    log_prompts: bool = False  # the prompts' text in the log, which otherwise holds none

    def __post_init__(self) -> None:
        """Raises ConfigError for half a TLS key pair, a rate or a URL that cannot be read."""
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile go together")
        if self.otlp_endpoint is not None and not re.match(r"https?://[^/]", self.otlp_endpoint):
            raise ConfigError(f"otlp_endpoint must be an http(s) URL, got {self.otlp_endpoint}")
        if self.rate_limit is not None:
            from limits import parse_many  # seldom wanted, and not quick to import

            try:
                parse_many(self.rate_limit)
            except ValueError as error:
                message = f'rate_limit must read like "60/minute", got {self.rate_limit}'
                raise ConfigError(message) from error


SCHEMA = Schema(
    {
        "model": ModelConfig,
        "engine": EngineConfig,
        "speculation": SpeculationConfig,
        "server": ServerSettings,
    }
)

SECRETS = ("server.api_key", "server.admin_key")  # never shown


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved configuration. `origins` maps each key that was set to where it was set:
    "FILE:LINE", the flag, or the environment variable."""

    engine: EngineConfig
    server: ServerSettings
    origins: Mapping[str, str]

    def value(self, path: str) -> Any:
        """The value of a full key such as "speculation.tree.width"."""
        section, *rest = path.split(".")
        roots = {"engine": self.engine, "server": self.server}
        found: Any = roots[section] if section in roots else getattr(self.engine, section)
        for name in rest:
            found = getattr(found, name)
        return found

    def render(self) -> str:
        """The configuration as YAML that loads back, each key with its origin as a comment."""
        lines: list[str] = []
        above: list[str] = []
        for path in SCHEMA.keys:
            *sections, name = path.split(".")
            for depth, section in enumerate(sections):
                if sections[: depth + 1] != above[: depth + 1]:
                    lines.append(f"{'  ' * depth}{section}:")
            above = sections
            value = self.value(path)
            text = f"{'  ' * len(sections)}{name}: {_yaml(value)}"
            if path in SECRETS and value is not None:
                text = f"{'  ' * len(sections)}# {name}: hidden"
            lines.append(f"{text:<48}  # {self.origins.get(path, 'default')}")
        return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./+-]*", value)
    if is_plain and parse_value(value, "value") == value:
        return str(value)
    return json.dumps(value, default=str)
