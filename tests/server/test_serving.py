"""`treeline serve` as a process with a stub engine: ready line, drain, death."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


class Served:
    """A running server; `url` is read from its ready line."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.stub_serve", "serve", "--port", "0"],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("TREELINE_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        self.ready, self.curl = (self.process.stdout.readline() for _ in range(2))
        watchdog.cancel()
        found = re.search(r"http://[\w.:]+", self.ready)
        assert found, self.process.communicate()
        self.url = found[0]

    def complete(self, prompt: str, max_tokens: int) -> httpx.Response:
        body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": max_tokens}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)

    def end(self, timeout: float) -> tuple[int, str]:
        """The exit code and what was written to stderr after the ready line."""
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.process.kill()
    server.process.communicate()


def test_the_ready_line_comes_when_it_accepts_and_its_curl_line_works(served: Served) -> None:
    assert served.ready.startswith("Treeline serves SmolLM2-135M-Instruct at http://127.0.0.1:")
    words = shlex.split(served.curl)
    assert words[:2] == ["curl", f"{served.url}/v1/completions"]
    assert words[2:5] == ["-H", "Content-Type: application/json", "-d"]
    answer = httpx.post(words[1], content=words[5], headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == "a" * json.loads(words[5])["max_tokens"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(served: Served, number: signal.Signals) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(served.complete, "x", 30) for _ in range(4)]
        time.sleep(0.5)
        served.process.send_signal(number)
        answers = [future.result() for future in running]
    assert [answer.json()["choices"][0]["text"] for answer in answers] == ["a" * 30] * 4
    code, errors = served.end(timeout=10)
    assert code == 0
    assert "Traceback" not in errors
    with pytest.raises(httpx.ConnectError):
        served.complete("x", 1)


def test_a_dead_engine_ends_the_process(served: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(served.complete, "x", 1000) for _ in range(3)]
        time.sleep(0.3)
        died = served.complete("die", 1000)
        answers = [died, *(future.result() for future in others)]
    assert all(answer.status_code >= 500 for answer in answers)
    code, errors = served.end(timeout=10)
    assert code == 1
    assert "treeline: the engine has stopped: RuntimeError: the device is gone" in errors
    assert "Traceback" not in errors
