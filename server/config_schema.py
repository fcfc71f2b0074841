"""The shape of the configuration, derived from the frozen dataclasses that it fills.

A key, its type, range and default are written once, on the dataclass (engine/config.py and
ServerSettings). From there come the pydantic model that checks the YAML and the words that an
error message uses, so a new method needs its dataclass and nothing here.
"""

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pydantic

from engine.config import OneOf, Range

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a non-empty string",
    Path: "a path",
}


class Schema:
    """The sections of the configuration. `sections` maps each name to its dataclass.

    A field that carries the name of a section is that section, not a part of its own dataclass:
    EngineConfig.model is the section `model`, and the rest of EngineConfig is `engine`.
    """

    def __init__(self, sections: dict[str, type]) -> None:
        self.sections = sections
        self.keys: dict[str, Any] = {}  # full path of every leaf -> its annotation
        self.types: dict[str, type] = {}  # full path of every section -> its dataclass
        self.children: dict[str, list[str]] = {"": list(sections)}  # section -> its keys
        for name, section in sections.items():
            self._collect(section, name)
        self.model = pydantic.create_model(
            "Configuration",
            __config__=_STRICT,
            **{name: self._member(section) for name, section in sections.items()},
        )

    def describe(self, path: str) -> str:
        """What the value at `path` must be, for "must be ..."."""
        if path in self.keys:
            return _describe(self.keys[path])
        return f"a section with the keys {', '.join(self.children[path])}"

    def takes_text(self, path: str) -> bool:
        """Whether the key holds text, which a flag or a variable then gives as it is."""
        return any(kind in (str, Path) for kind in _alternatives(self.keys[path]))

    def _fields(self, section: type) -> Iterator[tuple[Field[Any], Any]]:
        hints = get_type_hints(section, include_extras=True)
        for field in fields(section):
            if field.name not in self.sections:
                yield field, hints[field.name]

    def _collect(self, section: type, path: str) -> None:
        self.types[path] = section
        self.children[path] = []
        for field, hint in self._fields(section):
            self.children[path].append(field.name)
            if is_dataclass(hint) and isinstance(hint, type):
                self._collect(hint, f"{path}.{field.name}")
            else:
                self.keys[f"{path}.{field.name}"] = hint

    def _member(self, section: type) -> Any:
        """A section as pydantic's (type, default); required if one of its fields is."""
        members: dict[str, Any] = {}
        for field, hint in self._fields(section):
            if is_dataclass(hint) and isinstance(hint, type):
                members[field.name] = self._member(hint)
            else:
                # What is unset is left to the dataclass: its defaults are the only ones.
                members[field.name] = (_checked(hint), ... if _is_required(field) else None)
        model = pydantic.create_model(section.__name__, __config__=_STRICT, **members)
        required = any(_is_required(field) for field, _ in self._fields(section))
        return (model, ... if required else None)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)


def _checked(hint: Any) -> Any:
    """The annotation as pydantic checks it: ranges and choices turned into its own terms."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _constrained(arguments[0], arguments[1])
    if origin in (Union, types.UnionType):
        return Union[tuple(_checked(part) for part in arguments)]  # noqa: UP007 (built at run time)
    if origin is tuple:
        return tuple[tuple(part if part is ... else _checked(part) for part in arguments)]  # type: ignore[misc]
    return Annotated[str, pydantic.Field(min_length=1)] if hint is str else hint


def _constrained(kind: Any, limit: Range | OneOf) -> Any:
    if isinstance(limit, OneOf):
        return Literal[limit.choices]
    return Annotated[kind, pydantic.Field(ge=limit.low, le=limit.high)]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _describe_limit(_NAMES[arguments[0]], arguments[1])
    if origin in (Union, types.UnionType):
        named = [_describe(part) for part in arguments if part is not types.NoneType]
        return " or ".join([*named, "null"])
    if origin is tuple and arguments[-1] is ...:
        return f"a list, each item {_describe(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(_describe(part) for part in arguments)}]"
    return _NAMES[hint]


def _describe_limit(name: str, limit: Range | OneOf) -> str:
    if isinstance(limit, OneOf):
        return f"one of {', '.join(limit.choices)}"
    if limit.high is None:
        return f"{name} of at least {limit.low}"
    return f"{name} from {limit.low} to {limit.high}"
