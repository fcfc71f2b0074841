"""YAML that keeps its line numbers.

A configuration error must name its line, a repeated key must not win silently, and `method: off`
must mean the word off. PyYAML's own constructor gives none of the three, so this file walks its
node graph with YAML 1.2's scalar rules instead.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engine.errors import ConfigError

_TAG = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """The composer of PyYAML with the scalar types of YAML 1.2's core schema; no aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As PyYAML's, but an alias is refused: it would make one line mean two keys."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


# Bounded digits: a longer number is a string, and then a wrong type with a line number.
for _name, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?[0-9]{1,18}", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]{1,18}|[0-9]{1,18}(?:\.[0-9]{0,18})?)(?:[eE][-+]?[0-9]{1,3})?",
        "-+.0123456789",
    ),
):
    _CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the file: its path, its value (None for a section) and its line."""

    path: tuple[str, ...]
    value: Any
    line: int
    is_section: bool


def read_config_file(path: Path, shown: str) -> list[Entry]:
    """Every key of a YAML file in order, sections before what they hold.

    `shown` is the file's name in messages. Raises ConfigError naming file and line for a missing,
    unreadable or empty file, invalid YAML, a repeated key, or a document that is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{shown}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: not UTF-8 text") from error
    node = _compose(text, shown)
    if node is None:
        raise ConfigError(f"{shown}: the file is empty")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{shown}:{_line(node)}: expected sections such as model: and server:")
    return list(_entries(node, (), shown))


def parse_value(text: str, shown: str) -> Any:
    """The value of a flag or an environment variable, read as the right side of a YAML key.

    Raises ConfigError naming `shown` if it is no YAML.
    """
    node = _compose(text, shown)
    return None if node is None else _value(node, shown)


def _compose(text: str, shown: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{shown}{where}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{shown}: not valid YAML: {reason}") from error
    except RecursionError as error:
        raise ConfigError(f"{shown}: nested too deeply") from error
    return node


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _entries(node: yaml.MappingNode, path: tuple[str, ...], shown: str) -> Iterator[Entry]:
    first_line: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{shown}:{line}: a key must be a plain word")
        here = (*path, key_node.value)
        if key_node.value in first_line:
            raise ConfigError(
                f"{shown}:{line}: {'.'.join(here)}: "
                f"repeated; first set on line {first_line[key_node.value]}"
            )
        first_line[key_node.value] = line
        if isinstance(value_node, yaml.MappingNode):
            yield Entry(here, None, line, is_section=True)
            yield from _entries(value_node, here, shown)
        else:
            yield Entry(here, _value(value_node, shown), line, is_section=False)


def _value(node: yaml.Node, shown: str) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, shown) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {entry.path[-1]: entry.value for entry in _entries(node, (), shown)}
    text: str = node.value
    match node.tag.removeprefix(_TAG):
        case "bool":
            return text == "true"
        case "null":
            return None
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "str":
            return text
        case tag:
            raise ConfigError(f"{shown}:{_line(node)}: the tag {tag} is not supported")
