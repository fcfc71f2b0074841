#!/usr/bin/env python3
"""Wear a running server out, and look for what it does not give back.

  scripts/soak.py http://127.0.0.1:8000 --pid PID --seconds 1800
  scripts/soak.py http://127.0.0.1:8000 --pid PID --disconnects 1000

The first mixes clients: streams and whole answers, 20 % that leave, 10 % with bad input. The second
connects and leaves at random moments. Both end with a table, and with JSON if --json names a file;
the exit code is 1 for any 5xx, wrong answer or leak.

With --pid the largest mapping of the server's memory is told apart: it is the KV cache, of which a
CPU makes a page resident when a slot is first used so far. It grows with the longest text that each
slot has ever held, up to what was reserved at start; the rest should not grow.
"""

import argparse
import asyncio
import json
import random
import re
import socket
import statistics
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

GAUGES = ("treeline_num_requests_running", "treeline_num_requests_waiting")
TASKS = "treeline_event_loop_tasks"
BAD = (
    {"max_tokens": -1},
    {"temperature": "hot"},
    {"n": 10_000},
    {"unknown": 1},
    {"prompt": []},
    {"logit_bias": {"99999999": 1}},
)
WORDS = ("the", "model", "tree", "of", "tokens", "def", "return", "import", "for", "river", "blue")


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's memory at one moment. Times in seconds since the start, sizes in bytes."""

    time: float
    requests: int  # so far
    rss: float
    rest: float  # of that, what is not in the largest mapping


@dataclass
class Report:
    """What was seen."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    tokens: int = 0
    leaked: float = 0.0
    leaked_tasks: float = 0.0

    def fail(self, what: str) -> None:
        """Count something that must not happen."""
        self.faults[what] += 1

    def slope(self, per: str, of: str) -> float | None:
        """Growth of `rss` or `rest` per unit of `time` or `requests`, over the last two thirds;
        None while there are too few samples."""
        late = self.samples[len(self.samples) // 3 :]
        along, sizes = ([getattr(sample, name) for sample in late] for name in (per, of))
        if len(late) < 5 or along[0] == along[-1]:
            return None
        return statistics.linear_regression(along, sizes).slope

    def summary(self, seconds: float) -> dict[str, object]:
        """All of it as JSON takes it."""
        by_time, by_rest = self.slope("time", "rss"), self.slope("time", "rest")
        by_request = self.slope("requests", "rss")
        first, last = (self.samples[0], self.samples[-1]) if self.samples else (None, None)
        probes = sorted(self.probes)
        return {
            "seconds": round(seconds, 1),
            "requests": sum(self.kinds.values()),
            "kinds": dict(self.kinds),
            "statuses": dict(self.statuses),
            "completion_tokens": self.tokens,
            "server_errors_5xx": sum(n for s, n in self.statuses.items() if s.startswith("5")),
            "faults": dict(self.faults),
            "leaked_sequences": self.leaked,
            "leaked_tasks": self.leaked_tasks,
            "rss_first_mb": round(first.rss / 1e6, 1) if first else None,
            "rss_last_mb": round(last.rss / 1e6, 1) if last else None,
            "rss_slope_mb_per_minute": None if by_time is None else round(by_time * 60 / 1e6, 3),
            "rest_first_mb": round(first.rest / 1e6, 1) if first else None,
            "rest_last_mb": round(last.rest / 1e6, 1) if last else None,
            "rest_slope_mb_per_minute": None if by_rest is None else round(by_rest * 60 / 1e6, 3),
            "rss_slope_kb_per_request": None if by_request is None else round(by_request / 1e3, 3),
            "ready_p50_ms": round(probes[len(probes) // 2] * 1e3, 1) if probes else None,
            "ready_p99_ms": round(probes[int(len(probes) * 0.99)] * 1e3, 1) if probes else None,
        }


class Soak:
    """One run against one server."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Report()
        self.random = random.Random(options.seed)
        self.began = time.monotonic()
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.clients)
        self.http = httpx.AsyncClient(
            base_url=options.url, headers=headers, timeout=600, limits=limits, trust_env=False
        )
        self.model = ""

    async def run(self) -> dict[str, object]:
        """The whole run. Raises httpx.HTTPError if the server cannot be reached at its start."""
        listed = (await self.http.get("/v1/models")).raise_for_status().json()
        self.model = listed["data"][0]["id"]
        await self.stream()  # the first one starts what serves all later ones
        tasks = await self.metric(TASKS)
        ends = asyncio.Event()
        watcher = asyncio.create_task(self.watch(ends))
        work = self.leave if self.options.disconnects else self.mix
        await asyncio.gather(*(work() for _ in range(self.options.clients)))
        seconds = time.monotonic() - self.began
        ends.set()
        await watcher
        self.report.leaked, left = await self.settle(tasks)
        self.report.leaked_tasks = left - tasks
        await self.http.aclose()
        return self.report.summary(seconds)

    async def mix(self) -> None:
        """One client of the mixed load."""
        while time.monotonic() - self.began < self.options.seconds:
            draw = self.random.random()
            kind = "abort" if draw < 0.2 else "bad" if draw < 0.3 else "whole"
            if kind == "whole" and self.random.random() < 0.5:
                kind = "stream"
            self.report.kinds[kind] += 1
            try:
                await getattr(self, kind)()
            except httpx.HTTPError as error:
                self.report.fail(f"{kind}: {type(error).__name__}")

    async def whole(self) -> None:
        """Ask for a whole answer and check it."""
        response = await self.http.post("/v1/completions", json=self.body())
        self.count(response.status_code, 200)
        if response.status_code == 200:
            self.report.tokens += response.json()["usage"]["completion_tokens"]

    async def stream(self) -> None:
        """Read a stream to its end, which must be [DONE]."""
        body = {**self.body(), "stream": True, "stream_options": {"include_usage": True}}
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            text = (await response.aread()).decode()
        self.count(response.status_code, 200)
        if response.status_code != 200:
            return
        payloads = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if payloads[-1] != "[DONE]" or '"error"' in payloads[-2]:
            self.report.fail("a stream that broke")
        else:
            self.report.tokens += json.loads(payloads[-2])["usage"]["completion_tokens"]

    async def abort(self) -> None:
        """Leave before the end, somewhere."""
        body = {**self.body(), "stream": self.random.random() < 0.7, "max_tokens": 400}
        try:
            async with asyncio.timeout(self.random.uniform(0.0, self.options.patience)):
                response = await self.http.post("/v1/completions", json=body)
                self.count(response.status_code, 200)
        except TimeoutError:
            self.report.statuses["left"] += 1

    async def bad(self) -> None:
        """Ask for something wrong."""
        body = {**self.body(), **self.random.choice(BAD)}
        self.count((await self.http.post("/v1/completions", json=body)).status_code, 400)

    async def leave(self) -> None:
        """Connect, send some or all of a request, and leave at a random moment."""
        address = httpx.URL(self.options.url)
        while sum(self.report.kinds.values()) < self.options.disconnects:
            self.report.kinds["disconnect"] += 1
            _, writer = await asyncio.open_connection(address.host, address.port or 80)
            raw = self.raw()
            whole = self.random.random() < 0.8
            writer.write(raw if whole else raw[: self.random.randrange(len(raw))])
            await asyncio.sleep(self.random.uniform(0.0, self.options.patience) ** 2)
            if self.random.random() < 0.5:  # half of them reset, as a crash does
                linger = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def raw(self) -> bytes:
        """A request as bytes."""
        body = json.dumps(
            {**self.body(), "max_tokens": 400, "stream": self.random.random() < 0.7}
        ).encode()
        lines = [
            "POST /v1/completions HTTP/1.1",
            "Host: soak",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if self.options.api_key:
            lines.append(f"Authorization: Bearer {self.options.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    def body(self) -> dict[str, object]:
        """A request that is right, unlike any other."""
        words = [self.random.choice(WORDS) for _ in range(self.random.randrange(4, 120))]
        return {
            "model": self.model,
            "prompt": " ".join([str(self.random.random()), *words]),
            "max_tokens": self.random.randrange(1, self.options.max_tokens),
            "temperature": self.random.choice([0, 0.8]),
            "ignore_eos": True,
        }

    def count(self, status: int, expected: int) -> None:
        """Count an answer; another status than the expected one is a fault."""
        self.report.statuses[str(status)] += 1
        if status != expected:
            self.report.fail(f"{status} instead of {expected}")

    async def watch(self, ends: asyncio.Event) -> None:
        """Once a second: the server's memory, and how long /ready takes."""
        async with httpx.AsyncClient(base_url=self.options.url, trust_env=False) as http:
            while not ends.is_set():
                began = time.monotonic()
                if (await http.get("/ready", timeout=60)).status_code != 200:
                    self.report.fail("not ready")
                self.report.probes.append(time.monotonic() - began)
                memory = await self.memory()
                rest = memory - largest_mapping(self.options.pid)
                done = sum(self.report.kinds.values())
                self.report.samples.append(Sample(began - self.began, done, memory, rest))
                await asyncio.sleep(1.0)

    async def memory(self) -> float:
        """Bytes of the server in memory or swap; by its own account if no --pid says where."""
        if self.options.pid is None:
            return await self.metric("process_resident_memory_bytes")
        file = Path(f"/proc/{self.options.pid}/status")
        status = file.read_text()  # noqa: ASYNC240 (the kernel's, not a disk's)
        found = re.findall(r"^(?:VmRSS|VmSwap):\s+(\d+) kB$", status, re.MULTILINE)
        return 1024.0 * sum(map(int, found))

    async def metric(self, name: str) -> float:
        """One sample of /metrics."""
        text = (await self.http.get("/metrics")).raise_for_status().text
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def settle(self, tasks: float) -> tuple[float, float]:
        """Sequences and tasks that the server still has once nobody asks for anything; before
        there were so many `tasks`."""
        deadline = time.monotonic() + self.options.settle
        while True:
            left = sum([await self.metric(name) for name in GAUGES])
            left_tasks = await self.metric(TASKS)
            if (left == 0 and left_tasks <= tasks) or time.monotonic() > deadline:
                return left, left_tasks
            await asyncio.sleep(0.1)


def largest_mapping(pid: int | None) -> float:
    """Resident bytes of the process's largest mapping; 0 if it is not known which process."""
    if pid is None:
        return 0.0
    found = re.findall(r"^(Size|Rss):\s+(\d+) kB$", Path(f"/proc/{pid}/smaps").read_text(), re.M)
    sizes = [
        (int(size), int(rss)) for (_, size), (_, rss) in zip(found[::2], found[1::2], strict=True)
    ]
    return 1024.0 * max(sizes)[1]


def main() -> int:
    """Run and print. Returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the mixed load")
    parser.add_argument("--disconnects", type=int, default=0, help="leave so often instead")
    parser.add_argument("--clients", type=int, default=32, help="at the same time")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--patience", type=float, default=1.5, help="seconds of who leaves")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds to forget the last")
    parser.add_argument("--pid", type=int, help="of the server, to read its memory from /proc")
    parser.add_argument("--api-key", help="if the server asks for one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    try:
        result = asyncio.run(Soak(options).run())
    except httpx.HTTPError as error:
        print(f"soak: {options.url}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for name, value in result.items():
        print(f"{name:<26} {json.dumps(value) if isinstance(value, dict) else value}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    wrong = ("server_errors_5xx", "faults", "leaked_sequences")
    return int(any(result[name] for name in wrong) or float(str(result["leaked_tasks"])) > 0)


if __name__ == "__main__":
    sys.exit(main())
