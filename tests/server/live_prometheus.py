"""A real Prometheus scrapes a live server under traffic; every query must then find a number.

Run by scripts/check_monitoring. The engine is the fake one: the question is whether expressions,
exposition and Prometheus agree, and not how fast anything is.
"""

import contextlib
import json
import logging
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

from engine.config import METHODS
from tests.server.conftest import Live, serving, wait_until
from tests.server.fakes import FakeEngine, cycle
from tests.server.monitoring import MONITORING, RULES, panel_queries, rules

NUM_CLIENTS = 12  # more than the engine runs, so that there is a queue
TRAFFIC_SECONDS = 12.0
INTERVAL = "10s"  # what Grafana would put for $__rate_interval


def main() -> int:
    """Returns 1, after one line per query that found nothing, if there is any."""
    engine = FakeEngine(cycle("abcdefgh "), step_seconds=0.01)
    logging.getLogger("treeline").setLevel(logging.CRITICAL)  # the faults are on purpose
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(engine) as live,
        prometheus(Path(folder), live.url) as http,
        traffic(live),
    ):
        time.sleep(TRAFFIC_SECONDS)
        empty = [*empty_panels(http), *bad_rules(http)]
    for line in empty:
        print(line, file=sys.stderr)
    num_panels, num_rules = len(list(panel_queries())), len(list(rules()))
    if not empty:
        print(f"{num_panels} dashboard queries and {num_rules} rules: each evaluates to a number")
    return int(bool(empty))


def empty_panels(http: httpx.Client) -> Iterator[str]:
    """A line for each dashboard query without one finite value."""
    for query in panel_queries():
        result = ask(http, query.filled(INTERVAL))
        if not finite(result):
            yield f"no value: {query.place}: {query.expr}: {json.dumps(result)}"


def bad_rules(http: httpx.Client) -> Iterator[str]:
    """A line for each rule that fails, and for each recording rule without one finite value."""
    groups = http.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    for rule in rules():
        name = rule.get("record") or rule["alert"]
        if loaded[name]["health"] != "ok":
            yield f"rule {name}: {loaded[name].get('lastError', loaded[name]['health'])}"
        if "record" in rule and not finite(ask(http, name)):
            yield f"no value: {name}: {rule['expr']}"


def ask(http: httpx.Client, expr: str) -> list[dict[str, Any]]:
    """The instant vector of `expr` now."""
    answer = http.get("/api/v1/query", params={"query": expr})
    if answer.status_code != 200:
        raise SystemExit(f"Prometheus refuses {expr}: {answer.text}")
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def finite(result: list[dict[str, Any]]) -> list[float]:
    """The values that can be drawn."""
    values = (float(series["value"][1]) for series in result)
    return [value for value in values if math.isfinite(value)]


@contextlib.contextmanager
def prometheus(folder: Path, url: str) -> Iterator[httpx.Client]:
    """Prometheus with the project's configuration, scraping `url` each second."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [httpx.URL(url).netloc.decode()]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    binary = shutil.which("prometheus")
    if binary is None:
        raise SystemExit("prometheus is not installed")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as http:
            wait_until(lambda: is_ready(http), 30)
            yield http
    except AssertionError:
        print((folder / "log").read_text(), file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(30)


def is_ready(http: httpx.Client) -> bool:
    """Whether Prometheus answers queries."""
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def traffic(live: Live) -> Iterator[None]:
    """Requests of every method until the block ends, a few of which fail in the engine."""
    ends = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(base_url=live.url, trust_env=False, timeout=30) as http:
            for turn in range(sys.maxsize):
                if ends.is_set():
                    return
                body = {
                    "model": live.engine.info.model_name,
                    "prompt": f"client {number}",
                    "max_tokens": 40,
                    "speculation": {"method": METHODS[(number + turn) % len(METHODS)]},
                }
                http.post("/v1/completions", json=body)
                if number == 0 and turn % 10 == 9:
                    live.engine.fail_next = "a fault on purpose"

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            ends.set()
    for each in clients:
        each.result()


if __name__ == "__main__":
    sys.exit(main())
