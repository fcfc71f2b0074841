"""Where one HTTP request's outputs wait for its client.

Merging keeps a slow client's backlog at one output per choice, bounded by the text itself, and the
engine never waits.
"""

import asyncio
from dataclasses import replace

from engine.api import EngineOutput


def merged(first: EngineOutput, second: EngineOutput) -> EngineOutput:
    """Two successive outputs of one request as one."""
    logprobs = second.logprobs
    if first.logprobs is not None:
        logprobs = first.logprobs + (second.logprobs or ())
    return replace(
        second,
        new_token_ids=first.new_token_ids + second.new_token_ids,
        logprobs=logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
    )


class Mailbox:
    """Outputs of one job by choice index. Lives on the event loop; only `take` waits."""

    def __init__(self) -> None:
        self._pending: dict[int, EngineOutput] = {}
        self._failure: Exception | None = None
        self._wake = asyncio.Event()

    def put(self, index: int, output: EngineOutput) -> None:
        """Add what a step gave to choice `index`."""
        earlier = self._pending.get(index)
        self._pending[index] = output if earlier is None else merged(earlier, output)
        self._wake.set()

    def fail(self, failure: Exception) -> None:
        """Let `take` raise `failure` once what came before it is taken."""
        self._failure = failure
        self._wake.set()

    async def take(self) -> dict[int, EngineOutput]:
        """All that has come since the last time; waits for something to come."""
        await self._wake.wait()
        if not self._pending:
            assert self._failure is not None
            raise self._failure
        pending, self._pending = self._pending, {}
        if self._failure is None:
            self._wake.clear()
        return pending
