"""What the server is told before it starts: one resolved configuration that knows its origins.

It imports engine.config, not engine.api, so that a wrong key is reported without waiting for torch.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from engine.config import EngineConfig, ModelConfig, Range, SpeculationConfig
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
    drain_seconds: Annotated[int, Range(1, 3600)] = 30  # on SIGTERM, for what still runs
    keep_alive_seconds: Annotated[float, Range(0, 3600)] = 0.0  # between SSE comments; 0: none
    chat_template: Path | None = None  # a Jinja file, instead of the model's own template


SCHEMA = Schema(
    {
        "model": ModelConfig,
        "engine": EngineConfig,
        "speculation": SpeculationConfig,
        "server": ServerSettings,
    }
)


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
            text = f"{'  ' * len(sections)}{name}: {_yaml(self.value(path))}"
            lines.append(f"{text:<48}  # {self.origins.get(path, 'default')}")
        return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./+-]*", value)
    if is_plain and parse_value(value, "value") == value:
        return str(value)
    return json.dumps(value, default=str)
