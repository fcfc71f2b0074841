"""One line per request: who asked what, how it ended, where its time went, what speculation gave.

A request's record travels in its ASGI scope and is filled in where each fact is known. It holds no
text of a client unless `server.log_prompts` asks for it.
"""

import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("treeline.access")

_KEY = "treeline.record"
QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked every few seconds, for ever


@dataclass(slots=True)
class RequestRecord:
    """What is known of one HTTP request so far. `facts`: what the route adds, in log order."""

    request_id: str
    http_method: str
    path: str
    status: int = 0  # 0: the client left before any answer
    key: str | None = None  # which API key, never the key
    facts: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


def attach(scope: MutableMapping[str, Any], record: RequestRecord) -> None:
    """Let what serves `scope` find the record."""
    scope[_KEY] = record


def record_of(scope: MutableMapping[str, Any]) -> RequestRecord:
    """The record of the request that is being served."""
    record: RequestRecord = scope[_KEY]
    return record


def write(record: RequestRecord) -> None:
    """Log a request that has ended. Successful probes are worth a line only to who debugs them."""
    is_probe = record.path in QUIET and record.status == 200
    fields = {
        "request_id": record.request_id,
        "status": record.status,
        "seconds": round(time.monotonic() - record.began, 4),
        "key": record.key,
        **record.facts,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    logger.log(
        logging.DEBUG if is_probe else logging.INFO,
        "%s %s",
        record.http_method,
        record.path,
        extra={"fields": known},
    )
