"""What a log line looks like: for people, or one JSON object for a collector.

Whatever a client sends ends up inside quotes or escaped, so that no request can forge a line.
"""

import logging
import re
import sys
import time
from typing import Any

import orjson

_PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)


class ConsoleFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER MESSAGE name=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        begin = f"{_utc(record)} {record.levelname} {record.name} {_escaped(record.getMessage())}"
        words = [begin, *(f"{name}={_word(value)}" for name, value in _fields(record).items())]
        if record.exc_info:
            words.append("\n" + self.formatException(record.exc_info))
        return " ".join(words)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, the request's fields at its top level."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logging(log_format: str) -> None:
    """Send everything that Treeline logs to stderr: `log_format` is "console" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger("treeline")
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _utc(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _word(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _escaped(orjson.dumps(value, default=str).decode())


def _escaped(text: str) -> str:
    """On one line, without control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
