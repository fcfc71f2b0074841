"""The client side of bench_serving.py: one streamed request, and many of them under a load."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its client saw it. Seconds."""

    ttft: float  # from when it was due to the first text
    e2e: float  # to the end of the stream
    last: float  # to the last text
    gaps: tuple[float, ...]  # between arrivals of text; one may bring several tokens
    tokens: int  # the server's count
    error: str | None = None

    @property
    def tpot(self) -> float:
        """Time per output token behind the first; 0 if there is none."""
        return (self.last - self.ttft) / (self.tokens - 1) if self.tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` at once, or `rate` arrivals per second."""

    clients: int = 0
    rate: float = 0.0

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients else f"{self.rate:g} requests/s"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and what all of them say besides the prompt."""

    client: httpx.AsyncClient
    body: dict[str, Any]
    is_chat: bool = False

    async def ask(self, prompt: str, due: float) -> Answer:
        """Stream one completion. Never raises for what the server does wrong."""
        times: list[float] = []
        tokens = None
        path, body = self._request(prompt)
        try:
            async with self.client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    return _failed(due, f"HTTP {response.status_code}: {text[:200]}")
                async for event in _events(response):
                    if "error" in event:
                        return _failed(due, str(event["error"])[:200])
                    if any(map(_text, event.get("choices", ()))):
                        times.append(time.perf_counter() - due)
                    if event.get("usage"):
                        tokens = int(event["usage"]["completion_tokens"])
        except (httpx.HTTPError, ValueError) as error:
            return _failed(due, f"{type(error).__name__}: {error}")
        end = time.perf_counter() - due
        if tokens is None:
            return _failed(due, "the stream held no usage")
        times = times or [end]
        gaps = tuple(after - before for before, after in itertools.pairwise(times))
        return Answer(times[0], end, times[-1], gaps, tokens)

    def _request(self, prompt: str) -> tuple[str, dict[str, Any]]:
        if self.is_chat:
            messages = [{"role": "user", "content": prompt}]
            return "/v1/chat/completions", {**self.body, "messages": messages}
        return "/v1/completions", {**self.body, "prompt": prompt}


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def _failed(due: float, error: str) -> Answer:
    return Answer(0.0, time.perf_counter() - due, 0.0, (), 0, error)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The data of a server-sent stream up to its [DONE]."""
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            yield json.loads(data)


async def run_load(
    ask: Callable[[str, float], Awaitable[Answer]],
    prompts: Sequence[str],
    load: Load,
    seed: int,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[Answer], float]:
    """Send every prompt once under `load`. Returns the answers and the seconds that it took."""
    answers: list[Answer] = []
    begin = time.perf_counter()

    async def one(prompt: str, due: float) -> None:
        answers.append(await ask(prompt, due))
        advance()

    if load.clients:
        waiting = iter(prompts)

        async def client() -> None:
            for prompt in waiting:
                await one(prompt, time.perf_counter())

        await asyncio.gather(*(client() for _ in range(load.clients)))
    else:
        rng = random.Random(seed)
        due = begin
        async with asyncio.TaskGroup() as group:
            for prompt in prompts:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(one(prompt, due))
                due += rng.expovariate(load.rate)
    return answers, time.perf_counter() - begin
