"""Servers that compare_peers.py compares: started here, asked over HTTP, as streams.

Each answers chats greedily through its own template. Servers count tokens in different ways or not
at all, so tokens are counted alike for all: the answer's text in the model's own tokens.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from peers import Answer

LLAMA_SERVER_NEEDS = "pip install starlette-context sse-starlette pydantic-settings"
_START_SECONDS = 300.0
_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ServerPeer:
    """One server in one setting, as in peers.Peer. `body`: fields that its requests add."""

    name: str
    setting: str
    url: str
    encode: Callable[[str], list[int]]
    body: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self, prompts: Sequence[str], clients: int, max_tokens: int
    ) -> tuple[list[Answer], float]:
        """The prompts' answers, asked by so many clients at once, and the seconds for them all.

        Raises httpx.HTTPError if the server refuses one.
        """
        return asyncio.run(self._run(prompts, clients, max_tokens))

    async def _run(
        self, prompts: Sequence[str], clients: int, max_tokens: int
    ) -> tuple[list[Answer], float]:
        answers: dict[int, Answer] = {}
        waiting = iter(enumerate(prompts))
        async with httpx.AsyncClient(base_url=self.url, timeout=None) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            common = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}

            async def ask_in_turn() -> None:
                for index, prompt in waiting:
                    answers[index] = await self._ask(client, prompt, common)

            begin = time.perf_counter()
            await asyncio.gather(*(ask_in_turn() for _ in range(clients)))
            seconds = time.perf_counter() - begin
        return [answers[index] for index in range(len(prompts))], seconds

    async def _ask(
        self, client: httpx.AsyncClient, prompt: str, common: Mapping[str, Any]
    ) -> Answer:
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, **common, **self.body}
        text, first, steps = "", 0.0, 0
        begin = time.perf_counter()
        async with client.stream("POST", _PATH, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", ()):
                    text += (choice.get("delta") or {}).get("content") or ""
                first = first or (time.perf_counter() - begin if text else 0.0)
                steps = (event.get("speculation") or {}).get("steps", steps)
        seconds = time.perf_counter() - begin
        return Answer(tuple(self.encode(text)), seconds, first or seconds, steps)


@contextlib.contextmanager
def treeline_server(config: str) -> Iterator[str]:
    """Treeline's address. Without prefix reuse, since prompts are asked more than once."""
    port = _free_port()
    command = [str(Path(sys.executable).with_name("treeline")), "serve", "--config", config]
    settings = [f"--port={port}", "--set=engine.prefix_reuse=false"]
    with _running([*command, *settings], port) as url:
        yield url


@contextlib.contextmanager
def llama_server(gguf: Path, context: int, threads: int, lookup: int) -> Iterator[str]:
    """The address of llama-cpp-python's server; `lookup`: tokens of its prompt lookup, 0 for none.

    Raises ImportError, saying what to install, where a package is missing.
    """
    try:
        import llama_cpp.server.app  # noqa: F401 (its own process imports it again)
    except ImportError as error:
        raise ImportError(f"{error}; {LLAMA_SERVER_NEEDS}") from error
    port = _free_port()
    flags: dict[str, object] = {
        "model": gguf,
        "port": port,
        "n_ctx": context,
        "n_threads": threads,
        "n_threads_batch": threads,
        "logits_all": bool(lookup),
        "interrupt_requests": False,  # it would end a running answer when another client asks
        "verbose": False,
    }
    if lookup:
        flags |= {"draft_model": "prompt-lookup-decoding", "draft_model_num_pred_tokens": lookup}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    with _running([sys.executable, "-m", "llama_cpp.server", *words], port) as url:
        yield url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[str]:
    """Run a server until the block ends. Raises RuntimeError with its output if it does not come
    up."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not come up: {log.read()[-2000:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
