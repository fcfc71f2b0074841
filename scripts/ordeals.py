#!/usr/bin/env python3
"""Put a server of one's own through an ordeal, and print one line of JSON on how it went.

  scripts/ordeals.py drain      SIGTERM during 16 streams: each must be whole, exit code 0
  scripts/ordeals.py death      its engine dies under 16 streams: each is told within 2 s, and the
                                exit code is not 0
  scripts/ordeals.py overload   4 times as many clients as it serves: the served ones wait at most
                                1.5 times as long as without the others, who are refused at once
  scripts/ordeals.py health     /health and /ready 20 times a second, idle, under 32 streams, and
                                while it reads a prompt of 5 MB that is too long: p99 below 100 ms
  scripts/ordeals.py soak       30 minutes of 32 mixed clients by scripts/soak.py, whose own options
                                may follow `--`, such as `-- --disconnects 1000`

The exit code is 1 if it failed. --set KEY=VALUE changes the server's configuration. Only `soak` is
long; the others take about a minute on two CPU cores.
"""

import argparse
import asyncio
import json
import math
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from health_probe import HealthProbe
from own_server import COMMAND, ROOT, OwnServer, own_server
from stream_clients import Clients, Seen

Result = dict[str, Any]
LONG = 2000  # tokens of a stream that is to outlast a phase


def quantile(values: list[float], share: float) -> float | None:
    """The value below which so many are; None of nothing."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 4) if ordered else None


def drain(server: OwnServer, options: argparse.Namespace) -> Result:
    """SIGTERM in the middle of streams."""
    seen, began = _interrupt(server, options, signal.SIGTERM)
    whole = sum(one.is_whole and one.tokens == options.tokens for one in seen)
    code = server.exit_code(60.0)
    return {
        "streams": len(seen),
        "whole": whole,
        "seconds": round(max(one.end for one in seen) - began, 2),
        "exit_code": code,
        "passed": whole == len(seen) and code == 0,
    }


def death(server: OwnServer, options: argparse.Namespace) -> Result:
    """The engine's end in the middle of streams."""
    seen, began = _interrupt(server, options, signal.SIGUSR1)
    told = sum(one.error is not None for one in seen)
    seconds = max(one.end for one in seen) - began
    code = server.exit_code(60.0)
    return {
        "streams": len(seen),
        "told": told,
        "errors": sorted({str(one.error) for one in seen}),
        "seconds": round(seconds, 2),
        "exit_code": code,
        "passed": told == len(seen) and seconds <= 2.0 and code not in (0, None),
    }


def _interrupt(
    server: OwnServer, options: argparse.Namespace, number: signal.Signals
) -> tuple[list[Seen], float]:
    """What streams saw of a signal that came once each had text, and when it came."""

    async def run() -> tuple[list[Seen], float]:
        async with Clients(server.url, options.tokens) as clients:
            streams = [asyncio.create_task(clients.stream()) for _ in range(options.streams)]
            await clients.begun(options.streams)
            began = time.monotonic()
            server.signal(number)
            return await asyncio.gather(*streams), began

    return asyncio.run(run())


def overload(server: OwnServer, options: argparse.Namespace) -> Result:
    """As many clients as are served at once, then several times as many."""

    async def run(count: int) -> list[Seen]:
        async with Clients(server.url, options.tokens) as clients:
            return await clients.ask_for(options.seconds, count)

    asyncio.run(run(1))  # the first requests of a process are slow
    alone, crowd = asyncio.run(run(options.batch)), asyncio.run(run(4 * options.batch))
    served = [one.seconds for one in crowd if one.is_whole]
    refused = [one.seconds for one in crowd if one.status == 503]
    others = len(crowd) - len(served) - len(refused)
    before = quantile([one.seconds for one in alone if one.is_whole], 0.95)
    after = quantile(served, 0.95)
    ratio = after / before if before and after else None
    refusal = quantile(refused, 0.95)
    return {
        "clients": 4 * options.batch,
        "served": len(served),
        "refused": len(refused),
        "other": others,
        "p95_at_capacity": before,
        "p95_overloaded": after,
        "ratio": ratio and round(ratio, 3),
        "refusal_p95": refusal,
        "passed": bool(ratio and ratio <= 1.5 and refusal and refusal <= 0.5 and not others),
    }


def health(server: OwnServer, options: argparse.Namespace) -> Result:
    """What a probe sees while the server is idle, busy, and handed a prompt that is too long."""

    async def busy() -> list[int]:
        statuses: list[int] = []
        async with Clients(server.url, LONG) as clients:
            streams = asyncio.create_task(clients.ask_for(math.inf, options.streams))
            await clients.begun(options.streams)
            probe.begin("streams")
            await asyncio.sleep(options.seconds)
            probe.begin("long prompts")
            until = time.monotonic() + options.seconds
            while time.monotonic() < until:
                statuses.append(await clients.post_long(options.megabytes))
            probe.begin(None)
            streams.cancel()
            await asyncio.wait([streams])
        return statuses

    with HealthProbe(server.url) as probe:
        probe.begin("idle")
        time.sleep(options.seconds / 4)
        statuses = asyncio.run(busy())
        times, failures = probe.end()
    phases = {
        phase: {
            "probes": len(found),
            **{f"p{int(100 * q)}": quantile(found, q) for q in (0.5, 0.99)},
            "max": round(max(found), 4),
        }
        for phase, found in times.items()
    }
    slow = [phase for phase, found in phases.items() if found["p99"] > 0.1]
    refused = bool(statuses) and set(statuses) <= {400, 413}
    return {
        "phases": phases,
        "failed_probes": failures,
        "long_prompts": statuses,
        "passed": not slow and not failures and refused,
    }


def soak(server: OwnServer, options: argparse.Namespace) -> Result:
    """scripts/soak.py against it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "scripts/soak.py", server.url, "--pid", str(server.pid)]
        command += ["--json", str(out), "--seconds", str(60 * options.minutes), *options.rest]
        code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
        return {**json.loads(out.read_text()), "passed": code == 0}


ORDEALS: dict[str, Callable[[OwnServer, argparse.Namespace], Result]] = {
    run.__name__: run for run in (drain, death, overload, health, soak)
}


def main() -> int:
    """Run one ordeal. Returns 1 if it failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ordeal", choices=ORDEALS)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[])
    parser.add_argument("--streams", type=int, help="default: 16; health: 32")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--batch", type=int, default=8, help="overload: engine.max_batch")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--megabytes", type=float, default=5.0, help="health: of the prompt")
    parser.add_argument("--minutes", type=float, default=30.0, help="soak")
    parser.add_argument(
        "--serve", default=shlex.join(COMMAND), help="another command to serve with"
    )
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    options.rest = sys.argv[at + 1 :]
    options.streams = options.streams or (32 if options.ordeal == "health" else 16)
    settings: dict[str, object] = {
        "engine.max_batch": options.batch if options.ordeal == "overload" else options.streams,
        "server.drain_seconds": 300,
    }
    if options.ordeal == "overload":
        settings["server.max_queued_requests"] = 0
    settings |= dict(item.split("=", 1) for item in options.set)
    with own_server(shlex.split(options.serve), settings) as server:
        result = {"ordeal": options.ordeal, **ORDEALS[options.ordeal](server, options)}
    print(json.dumps(result))
    return int(not result["passed"])


if __name__ == "__main__":
    sys.exit(main())
