"""`treeline serve` as a process with a stub engine: ready line, drain, death."""

import contextlib
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.sse import events

ROOT = Path(__file__).parents[2]


class Served:
    """A running server; `url` is read from its ready line."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TREELINE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.stub_serve", "serve", "--port", "0", *arguments],
            cwd=ROOT,
            env={**inherited, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        self.ready, self.curl = (self.process.stdout.readline() for _ in range(2))
        watchdog.cancel()
        found = re.search(r"https?://[\w.:]+", self.ready)
        assert found, self.process.communicate()
        self.url = found[0]

    def complete(self, prompt: str, max_tokens: int) -> httpx.Response:
        body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": max_tokens}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)

    def stream(self, prompt: str, max_tokens: int) -> str:
        """All bytes of a stream, however it ends."""
        body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": max_tokens}
        url = f"{self.url}/v1/completions"
        response = httpx.post(url, json={**body, "stream": True}, timeout=30)
        assert response.status_code == 200
        return response.text

    def wait_for(self, num_running: int) -> None:
        """Until so many requests run."""
        deadline = time.monotonic() + 20
        while httpx.get(f"{self.url}/ready").json()["running"] < num_running:
            assert time.monotonic() < deadline

    def end(self, timeout: float) -> tuple[int, str]:
        """The exit code and what was written to stderr after the ready line."""
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors


@contextlib.contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Served]:
    """A server for the length of the block."""
    server = Served(*arguments, **environment)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


def test_the_ready_line_comes_when_it_accepts_and_its_curl_line_works(served: Served) -> None:
    assert served.ready.startswith("Treeline serves SmolLM2-135M-Instruct at http://127.0.0.1:")
    words = shlex.split(served.curl)
    assert words[:2] == ["curl", f"{served.url}/v1/completions"]
    assert words[2:5] == ["-H", "Content-Type: application/json", "-d"]
    answer = httpx.post(words[1], content=words[5], headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == "a" * json.loads(words[5])["max_tokens"]


def test_what_is_loaded_is_kept_from_the_garbage_collector(served: Served) -> None:
    assert served.complete("gc", 1).json()["choices"][0]["text"] == "y"


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


def test_sixteen_streams_outlive_a_signal(served: Served) -> None:
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(served.stream, "x", 100) for _ in range(16)]
        served.wait_for(16)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        refused = served.complete("x", 1)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "service_unavailable"
        assert refused.headers["retry-after"]
        assert httpx.get(f"{served.url}/ready").status_code == 503
        assert httpx.get(f"{served.url}/health").status_code == 200
        texts = [future.result() for future in running]
    for text in texts:
        chunks = events(text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a" * 100
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    code, errors = served.end(timeout=10)
    assert code == 0
    assert "Traceback" not in errors


def test_what_outlives_the_drain_ends_with_an_error() -> None:
    with serving("--set", "server.drain_seconds=1") as served, ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(served.stream, "x", 4000) for _ in range(2)]
        whole = pool.submit(served.complete, "x", 4000)
        served.wait_for(3)
        time.sleep(0.5)
        served.process.send_signal(signal.SIGTERM)
        for stream in streams:
            *chunks, last = events(stream.result())
            assert len(chunks) > 9
            assert last["error"]["code"] == "service_unavailable"
        assert whole.result().status_code == 503
        code, errors = served.end(timeout=10)
    assert code == 0
    assert "Traceback" not in errors


def test_a_second_signal_does_not_wait(served: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        cut = pool.submit(served.stream, "x", 4000)
        served.wait_for(1)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        served.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code, _ = served.end(timeout=10)
        assert time.monotonic() - began < 5
        assert code == 0
        with contextlib.suppress(httpx.TransportError):
            cut.result()


def test_sixteen_streams_learn_that_the_engine_died(served: Served) -> None:
    def stream(prompt: str) -> tuple[str, float]:
        return served.stream(prompt, 4000), time.monotonic()

    with ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(stream, "x") for _ in range(15)]
        served.wait_for(15)
        streams.append(pool.submit(stream, "die"))
        ends = [each.result() for each in streams]
    assert [events(text)[-1]["error"]["code"] for text, _ in ends] == ["engine_dead"] * 16
    moments = [moment for _, moment in ends]
    assert max(moments) - min(moments) < 2
    code, _ = served.end(timeout=10)
    assert code == 1


def test_keys_logs_and_tls_as_a_process(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    arguments = ["--api-key", "sesame", "--set", "server.log_format=json"]
    files = {"TREELINE_SERVER_SSL_CERTFILE": certificate, "TREELINE_SERVER_SSL_KEYFILE": key}
    with serving(*arguments, **{name: str(path) for name, path in files.items()}) as served:
        assert served.url.startswith("https://127.0.0.1:")
        assert "Authorization: Bearer KEY" in served.curl
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=served.url, verify=trust) as http:
            assert http.get("/ready").status_code == 200
            assert http.get("/v1/models").status_code == 401
            http.headers["Authorization"] = "Bearer sesame"
            assert http.get("/v1/models").status_code == 200
            body = {"model": "SmolLM2-135M-Instruct", "prompt": "open", "max_tokens": 3}
            assert http.post("/v1/completions", json=body).status_code == 200
        served.process.send_signal(signal.SIGTERM)
        code, errors = served.end(timeout=10)
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert [line["status"] for line in lines] == [401, 200, 200]
    assert lines[2]["completion_tokens"] == 3
    assert lines[2]["tau"] == 1.0
    assert "sesame" not in errors
    assert '"open"' not in errors


def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    names = [
        f"--set=server.{name}={tmp_path}/empty.pem" for name in ("ssl_certfile", "ssl_keyfile")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("treeline: server.ssl_certfile, server.ssl_keyfile: cannot be used: ")
