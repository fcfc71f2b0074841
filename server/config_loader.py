"""From flags, environment and a YAML file to Settings.

Precedence, highest first: flags, environment (TREELINE_<SECTION>_<KEY>), the YAML file, defaults.
Everything is checked once, here. A mistake is one line that names where it was made, the full key
and what would have been right.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from engine.config import EngineConfig
from engine.errors import ConfigError
from server.config_file import parse_value, read_config_file
from server.settings import SCHEMA, ServerSettings, Settings

CONFIG_FOLDER = Path(__file__).resolve().parents[1] / "configs"  # in a clone and when installed
DEFAULT_CONFIG = "smollm2-135m"
ENV_PREFIX = "TREELINE_"
ENV_CONFIG = "TREELINE_CONFIG"  # as --config


@dataclass(frozen=True, slots=True)
class Override:
    """One value from outside the file: `origin` is the flag or the variable that set it."""

    origin: str
    path: str
    text: str


def load_settings(
    config: str, flags: Iterable[Override] = (), environment: Mapping[str, str] | None = None
) -> Settings:
    """Find, read, merge, check and freeze.

    `config` is a file's path, or the name of one of Treeline's own configurations. `environment`
    may set any key; `flags` win over it. Raises ConfigError with the one line to show.
    """
    file = _find(config)
    shown = _short(file)
    draft = _Draft(shown)
    for entry in read_config_file(file, shown):
        value = {} if entry.is_section else entry.value
        draft.put(".".join(entry.path), value, f"{shown}:{entry.line}")
    for override in [*_from_environment(environment or {}), *flags]:
        draft.put(override.path, _parse(override), override.origin)
    return draft.freeze()


def nearest_key(path: str) -> str:
    """The known key that an unknown one most likely means, as advice; else what is known there."""
    parent, _, name = path.rpartition(".")
    siblings = SCHEMA.children.get(parent, [])
    if near := difflib.get_close_matches(name, siblings, n=1):
        return f"did you mean {near[0]}?"
    elsewhere = [key for key in (*SCHEMA.types, *SCHEMA.keys) if key.rpartition(".")[2] == name]
    if near := elsewhere[:1] or difflib.get_close_matches(path, SCHEMA.keys, n=1):
        return f"did you mean {near[0]}?"
    return f"known here: {', '.join(siblings or SCHEMA.sections)}"


def _find(config: str) -> Path:
    own = CONFIG_FOLDER / f"{config}.yaml"
    if Path(config).name == config and not Path(config).is_file() and own.is_file():
        return own
    if Path(config).exists():
        return Path(config)
    known = ", ".join(sorted(path.stem for path in CONFIG_FOLDER.glob("*.yaml")))
    raise ConfigError(f"{config}: no such file; Treeline's own are {known}")


def _short(file: Path) -> str:
    absolute = file.resolve()
    below = absolute.is_relative_to(Path.cwd())
    return str(absolute.relative_to(Path.cwd()) if below else file)


def _from_environment(environment: Mapping[str, str]) -> list[Override]:
    names = {ENV_PREFIX + path.replace(".", "_").upper(): path for path in SCHEMA.keys}
    found = []
    for name, text in environment.items():
        if not name.startswith(ENV_PREFIX) or name == ENV_CONFIG:
            continue
        if name not in names:
            near = difflib.get_close_matches(name, [*names, ENV_CONFIG], n=1)
            advice = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{name}: unknown environment variable{advice}")
        found.append(Override(name, names[name], text))
    return found


def _parse(override: Override) -> Any:
    if override.path not in SCHEMA.keys:
        advice = nearest_key(override.path)
        raise ConfigError(f"{override.origin}: {override.path}: unknown key; {advice}")
    if SCHEMA.takes_text(override.path) and override.text != "null":
        return override.text
    return parse_value(override.text, override.origin)


class _Draft:
    """The nested mapping while layers are laid over each other, with the origin of each key."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}

    def put(self, path: str, value: Any, origin: str) -> None:
        *sections, name = path.split(".")
        level = self._values
        for section in sections:
            level = level.setdefault(section, {})
            if not isinstance(level, dict):
                return  # the file has no section here, and is refused for that
        # A section whose keys are all commented out reads as null.
        level[name] = {} if value is None and path in SCHEMA.children else value
        self._origins[path] = origin

    def freeze(self) -> Settings:
        try:
            # JSON mode: strict on numbers and words, yet a list may fill a tuple, a text a path.
            checked = SCHEMA.model.model_validate_json(json.dumps(self._values))
        except pydantic.ValidationError as error:
            raise ConfigError(self._explain(error)) from error
        sections = dict(checked)
        parts = {
            name: self._build(SCHEMA.types[name], section, name)
            for name, section in sections.items()
            if name != "engine"
        }
        server: ServerSettings = parts.pop("server")
        engine: EngineConfig = self._build(EngineConfig, sections["engine"], "engine", parts)
        return Settings(engine, server, self._origins)

    def _build(
        self, kind: type, checked: Any, path: str, known: Mapping[str, Any] | None = None
    ) -> Any:
        """The dataclass of a section, given only what was set: the rest are its own defaults."""
        values = dict(known or {})
        for name in checked.model_fields_set if checked is not None else ():
            value = getattr(checked, name)
            below = f"{path}.{name}"
            nested = SCHEMA.types.get(below)
            values[name] = self._build(nested, value, below) if nested else value
        try:
            return kind(**values)
        except ConfigError as error:
            places = ", ".join(
                f"{name} by {self._where(f'{path}.{name}')}" for name in sorted(values)
            )
            raise ConfigError(f"{self._where(path)}: {path}: {error} (set: {places})") from error

    def _where(self, path: str) -> str:
        """Where a key was set: its own origin, else that of the nearest section around it."""
        while path and path not in self._origins:
            path = path.rpartition(".")[0]
        return self._origins.get(path, self._file)

    def _explain(self, error: pydantic.ValidationError) -> str:
        """The first mistake as one line; unknown keys first, since they explain missing ones."""
        problems = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        problem = problems[0]
        path = ""
        for part in problem["loc"]:
            if path in SCHEMA.keys:
                break  # the rest leads into a list
            path = f"{path}.{part}".lstrip(".")
        where = self._where(path)
        if problem["type"] == "extra_forbidden":
            return f"{where}: {path}: unknown key; {nearest_key(path)}"
        if problem["type"] == "missing":
            return f"{where}: {path}: missing; it must be {SCHEMA.describe(path)}"
        return f"{where}: {path}: must be {SCHEMA.describe(path)}, got {self._got(path)}"

    def _got(self, path: str) -> str:
        value: Any = self._values
        for name in path.split("."):
            value = value[name]
        if isinstance(value, dict):
            return "a section"
        text = json.dumps(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
