"""The clients of scripts/ordeals.py: streams that say how they ended, and one prompt too long."""

import asyncio
import json
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

WORDS = ("the", "model", "tree", "of", "tokens", "def", "return", "import", "for", "river", "blue")
PAUSE = 0.25  # seconds before a client that was refused asks again


@dataclass(slots=True)
class Seen:
    """One request as its client saw it. `seconds`: how long it took; `end`: when it was over."""

    status: int = 0
    tokens: int = 0
    is_whole: bool = False
    error: str | None = None
    seconds: float = 0.0
    end: float = 0.0


class Clients:
    """Clients of one server, who ask for answers of `tokens` tokens."""

    def __init__(self, url: str, tokens: int) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, timeout=600, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._tokens = tokens
        self._random = random.Random(0)
        self._model = ""
        self._begun = asyncio.Semaphore(0)  # streams that have text

    async def __aenter__(self) -> Self:
        listed = (await self._http.get("/v1/models")).raise_for_status().json()
        self._model = listed["data"][0]["id"]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def begun(self, count: int) -> None:
        """Wait until so many streams have text. Raises TimeoutError after ten minutes."""
        async with asyncio.timeout(600):
            for _ in range(count):
                await self._begun.acquire()

    def _body(self) -> dict[str, Any]:
        words = self._random.choices(WORDS, k=30)
        return {
            "model": self._model,
            "prompt": " ".join(words),
            "max_tokens": self._tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def stream(self) -> Seen:
        """Read a stream to its end, whatever that is."""
        seen, began = Seen(), time.monotonic()
        try:
            async with self._http.stream("POST", "/v1/completions", json=self._body()) as response:
                seen.status = response.status_code
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        self._read(line[6:], seen)
        except httpx.HTTPError as error:
            seen.error = type(error).__name__
        seen.end = time.monotonic()
        seen.seconds = seen.end - began
        return seen

    def _read(self, data: str, seen: Seen) -> None:
        if data == "[DONE]":
            seen.is_whole = seen.error is None
            return
        event = json.loads(data)
        if "error" in event:
            seen.error = str(event["error"]["code"])
        elif event.get("usage"):
            seen.tokens = event["usage"]["completion_tokens"]
        elif not seen.tokens:
            seen.tokens = 1
            self._begun.release()

    async def ask_for(self, seconds: float, count: int) -> list[Seen]:
        """What `count` clients see who ask again and again for so long."""
        seen: list[Seen] = []
        until = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < until:
                one = await self.stream()
                seen.append(one)
                if not one.is_whole:
                    await asyncio.sleep(PAUSE)

        await asyncio.gather(*(client() for _ in range(count)))
        return seen

    async def post_long(self, megabytes: float) -> int:
        """The status of a prompt of so many bytes."""
        text = " ".join(self._random.choices(WORDS, k=int(megabytes * 1e6 / 5)))
        body = {"model": self._model, "prompt": text[: int(megabytes * 1e6)], "max_tokens": 1}
        return (await self._http.post("/v1/completions", json=body)).status_code
