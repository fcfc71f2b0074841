"""Two real replicas under load, one of which is killed: what clients see, and what is left behind.

Run by scripts/check_replicas. The model is tiny and random: the question is what becomes of
requests, streams, keys and processes, and not how fast anything is.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.engine.tiny import tiny_model
from tests.unit.tokenizer_kinds import tokenizer_of

ROOT = Path(__file__).resolve().parents[2]
COMPLETIONS = "/v1/completions"
KEY, ADMIN_KEY = "check-key", "check-admin-key"
NUM_CLIENTS, NUM_BODIES = 10, 8
REPLIES_BEFORE, REPLIES_AFTER = 60, 40  # before the kill; of the replica that comes back
SECONDS = 600.0  # for anything that must happen at all
LOST = "The replica that served this request has stopped."


@dataclass(slots=True)
class Reply:
    """How one request ended. `error`: the server's message, or what broke instead of one."""

    body: int
    is_stream: bool
    started: float
    ended: float = 0.0
    replica: str | None = None
    text: str = ""
    num_chunks: int = 0
    error: str | None = None


class Client:
    """Requests to the served address, with a key."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=SECONDS,
        )

    def ask(self, number: int, is_stream: bool, **changes: Any) -> Reply:
        """Send one of the bodies and read the answer to its end."""
        reply = Reply(number, is_stream, time.monotonic())
        body = body_of(number) | {"stream": is_stream} | changes
        try:
            with self.http.stream("POST", COMPLETIONS, json=body) as response:
                reply.replica = response.headers.get("x-treeline-replica")
                chunks = list(response.iter_raw())
            reply.num_chunks = len(chunks)
            read_answer(reply, b"".join(chunks).decode())
        except (httpx.HTTPError, ValueError, KeyError) as error:
            reply.error = f"unclear: {error!r}"
        reply.ended = time.monotonic()
        return reply

    def metrics(self) -> str:
        return self.http.get("/metrics").raise_for_status().text

    def replicas(self) -> set[str]:
        """Names of the replicas that tell their metrics."""
        return set(re.findall(r'treeline_build_info\{replica="(\w+)"', self.metrics()))

    def num_aborts(self) -> float:
        found = re.findall(r'_total\{.*finished_reason="abort".*\} (\S+)', self.metrics())
        return sum(map(float, found))


def body_of(number: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": f"number {number}: " + "add(x, y) " * number,
        "max_tokens": 64,
        "temperature": 1.0,
        "seed": number,
        "ignore_eos": True,
    }


def read_answer(reply: Reply, raw: str) -> None:
    """Fill in text or error. Raises ValueError or KeyError for what is neither."""
    if reply.is_stream and raw.startswith("data: "):
        if not raw.endswith("data: [DONE]\n\n"):
            raise ValueError(f"a stream without its end: {raw[-80:]}")
        events = [json.loads(line[6:]) for line in raw.split("\n\n")[:-2]]
    else:
        events = [json.loads(raw)]
    for event in events:
        if "error" in event:
            reply.error = event["error"]["message"]
        else:
            reply.text += event["choices"][0]["text"]


class Load:
    """Clients that ask on and on, streamed and whole in turn."""

    def __init__(self, client: Client) -> None:
        self.replies: list[Reply] = []
        self._client = client
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index,)) for index in range(NUM_CLIENTS)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int) -> None:
        number = index
        while not self._end.is_set():
            self.replies.append(self._client.ask(number % NUM_BODIES, bool(index % 2)))
            number += 1


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {SECONDS:g} s in vain: {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """`scripts/serve_ray.py` with two replicas; killed with all that it began if it must be."""
    tiny_model("Llama").save_pretrained(folder / "model")
    tokenizer_of("byte_level").save_pretrained(folder / "model")
    source = f"{{path: {json.dumps(str(folder / 'model'))}}}"
    config = folder / "tiny.yaml"
    config.write_text(f"model: {{name: tiny, dtype: float32, device: cpu, source: {source}}}\n")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    keys = {"TREELINE_SERVER_API_KEY": KEY, "TREELINE_SERVER_ADMIN_KEY": ADMIN_KEY}
    command = [sys.executable, str(ROOT / "scripts" / "serve_ray.py"), "--config", str(config)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--replicas", "2", "--cpus", "0.5", "--port", str(port)],
            env=os.environ | keys | {"RAY_TMPDIR": str(folder), "HF_HUB_OFFLINE": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("ready", lambda: b"Treeline serves" in log.read_bytes() or bool(process.poll()))
        if process.poll() is not None:
            raise ChildProcessError(f"the server did not start: exit code {process.returncode}")
        yield process, Client(port)
    except BaseException:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for one in family(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, if it lives."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_a_replica(pid: int) -> None:
    names = {one.pid: " ".join(one.cmdline()) for one in family(pid)}
    victims = [one for one, name in names.items() if name.startswith("ray::ServeReplica:")]
    os.kill(victims[0], signal.SIGKILL)


Row = tuple[str, str, bool]


def check_answers(client: Client) -> Iterator[Row]:
    """What one request must see, whichever replica serves it."""
    plain = client.http.post(COMPLETIONS, json=body_of(0), headers={"Authorization": "Bearer no"})
    refusal = plain.json()["error"]["code"]
    yield "a wrong key", f"{plain.status_code} {refusal}", refusal == "invalid_api_key"
    ids = client.http.get("/ready", headers={"x-request-id": "mine"}).headers
    yield "request id", str(ids.get_list("x-request-id")), ids.get_list("x-request-id") == ["mine"]
    admin = client.http.post(
        "/admin/speculation",
        json={"method": "off"},
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
    )
    yield "a change of one replica alone", str(admin.status_code), admin.status_code == 400
    stream = client.ask(1, True)
    yield "a stream comes in chunks", str(stream.num_chunks), stream.num_chunks > 3
    long = "def add(x, y):\n    return x + y\n" * 8
    homes = {client.ask(0, False, prompt=long + "!" * i, max_tokens=2).replica for i in range(8)}
    yield "one beginning, one replica", f"8 requests, {len(homes)} replica", len(homes) == 1
    before = client.num_aborts()
    with client.http.stream(
        "POST", COMPLETIONS, json=body_of(0) | {"stream": True, "max_tokens": 200}
    ) as response:
        next(response.iter_raw())
    wait_for("an abort", lambda: client.num_aborts() > before)
    yield "a client leaves", f"aborts: {client.num_aborts() - before:g}", True


def check_kill(client: Client, pid: int) -> Iterator[Row]:
    """Load, a kill in the middle of it, and load until the replica has come back."""
    first = client.replicas()
    with Load(client) as load:
        replies = load.replies
        wait_for("load", lambda: len(replies) >= REPLIES_BEFORE)
        killed_at = time.monotonic()
        kill_a_replica(pid)
        wait_for("two replicas", lambda: len(client.replicas() - first) == 1)
        last = client.replicas()
        (killed,), (born,) = first - last, last - first
        wait_for(
            "load on the new one",
            lambda: sum(reply.replica == born for reply in replies) >= REPLIES_AFTER,
        )
    failed = [reply for reply in replies if reply.error is not None]
    stray = [r for r in failed if not r.started <= killed_at <= r.ended or r.replica in last]
    unclear = [reply for reply in failed if reply.error != LOST]
    again = [client.ask(reply.body, reply.is_stream) for reply in failed]
    texts = {(r.body, r.text) for r in [*replies, *again] if r.error is None}
    served = {(r.body, r.replica) for r in replies if r.error is None}
    num_streamed = sum(reply.is_stream for reply in failed)
    for reply in [*stray, *unclear][:5]:
        print(reply, file=sys.stderr)
    counts = {name: sum(r.replica == name for r in replies) for name in (killed, *sorted(last))}
    yield "replies by replica", str(counts), min(counts.values()) > 0
    yield "in flight on the killed one", f"{len(failed)}, {num_streamed} streamed", bool(failed)
    yield "other requests that failed", str(len(stray)), not stray
    yield "failures that are not clear", str(len(unclear)), not unclear
    retried = sum(reply.error is None for reply in again)
    yield "served when asked again", f"{retried} of {len(again)}", retried == len(again)
    yield "the replica came back", f"{killed} -> {born}", True
    everywhere = len(served) == 3 * NUM_BODIES
    pairs = f"{len(texts)} texts of {NUM_BODIES} bodies, {len(served)} of {3 * NUM_BODIES} pairs"
    yield "same seed, same tokens", pairs, everywhere and len(texts) == NUM_BODIES


def check_end(client: Client, process: subprocess.Popen[bytes]) -> Iterator[Row]:
    """A signal drains, and nothing stays."""
    all_of_it = family(process.pid)
    body = body_of(2) | {"stream": True, "max_tokens": 200}
    with client.http.stream("POST", COMPLETIONS, json=body) as response:
        chunks = response.iter_raw()
        raw = next(chunks)
        process.send_signal(signal.SIGTERM)
        raw += b"".join(chunks)
    reply = Reply(2, True, 0.0)
    read_answer(reply, raw.decode())
    yield "a stream outlives SIGTERM", reply.error or "whole", reply.error is None
    code = process.wait(SECONDS)
    yield "exit code", str(code), code == 0
    left = psutil.wait_procs(all_of_it, timeout=10.0)[1]
    yield f"left of {len(all_of_it)} processes", str([one.name() for one in left]), not left


def main() -> int:
    """Returns 1 if anything is not as it should be."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (process, client):
        rows = [*check_answers(client), *check_kill(client, process.pid)]
        rows += check_end(client, process)
    print("| what | found | |\n| --- | --- | --- |")
    for what, found, is_right in rows:
        print(f"| {what} | {found} | {'ok' if is_right else 'WRONG'} |")
    return int(not all(is_right for _, _, is_right in rows))


if __name__ == "__main__":
    sys.exit(main())
