"""/health and /ready asked 20 times a second from a process of its own.

Not from the one that makes the load: how long that takes to notice an answer is not the server's.
"""

import multiprocessing
import time
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

INTERVAL = 0.05
PATHS = ("/health", "/ready")


class HealthProbe:
    """Measures while a phase has begun. Seconds."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_probe, args=(url, there), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        assert self._here.recv() == "ready"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()

    def begin(self, phase: str | None) -> None:
        """What follows belongs to `phase`; None: measure nothing."""
        self._here.send(("begin", phase))

    def end(self) -> tuple[dict[str, list[float]], int]:
        """The times of each phase and path, and how many probes did not answer 200."""
        self._here.send(("end", None))
        times, failures = self._here.recv()
        return times, failures


def _probe(url: str, orders: Connection) -> None:
    address = urlsplit(url)
    lines = {
        path: HTTPConnection(address.hostname or "", address.port, timeout=60) for path in PATHS
    }
    times: dict[str, list[float]] = {}
    failures, phase = 0, None
    orders.send("ready")
    due = time.monotonic()
    while True:
        while orders.poll():
            order, phase = orders.recv()
            if order == "end":
                orders.send((times, failures))
                return
        for path, line in lines.items() if phase else ():
            began = time.monotonic()
            try:
                line.request("GET", path)
                answer = line.getresponse()
                answer.read()
                failures += answer.status != 200
            except (OSError, HTTPException):
                line.close()
                failures += 1
            times.setdefault(f"{phase} {path}", []).append(time.monotonic() - began)
        due += INTERVAL
        now = time.monotonic()
        time.sleep(max(0.0, due - now))
        due = max(due, now)
