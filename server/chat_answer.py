"""The shapes of /v1/chat/completions: a message, or deltas of one."""

from collections.abc import Iterable
from typing import Any

from server.answer import Answer
from server.choice import ChoiceDelta, TokenEntry
from server.job import Job
from server.schemas.chat import ChatRequest
from server.text import TextCodec


class ChatAnswer(Answer):
    """Assistant messages. A stream opens each with its role and closes it with an empty delta."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def __init__(self, body: ChatRequest, job: Job, tokenizer: TextCodec, fingerprint: str) -> None:
        super().__init__(body, job, tokenizer, fingerprint, body.top_logprobs)
        self._body = body
        self._prompt_token_ids = job.requests[0].prompt_token_ids

    def body(self) -> dict[str, Any]:
        body = super().body()
        if self._body.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt_token_ids)
        return body

    def _chunks(self, index: int, delta: ChoiceDelta, is_first: bool) -> list[dict[str, Any]]:
        chunks = []
        shows_ids = self._body.return_token_ids
        if is_first:
            opening = self._delta(index, {"role": "assistant", "content": ""})
            if shows_ids:
                opening["prompt_token_ids"] = list(self._prompt_token_ids)
            chunks.append(opening)
        if delta.text or delta.entries or (shows_ids and delta.token_ids):
            chunk = self._delta(index, {"content": delta.text}, self._logprobs(delta.entries))
            if shows_ids:
                chunk["choices"][0]["token_ids"] = list(delta.token_ids)
            chunks.append(chunk)
        if delta.finish_reason is not None:
            chunk = self._delta(index, {})
            chunk["choices"][0] |= {"finish_reason": delta.finish_reason, **delta.stop_reason_field}
            chunks.append(chunk)
        return chunks

    def _whole_choices(self) -> list[dict[str, Any]]:
        choices = []
        for index, state in enumerate(self._choices):
            choice: dict[str, Any] = {
                "index": index,
                "message": {"role": "assistant", "content": state.text, "refusal": None},
                "logprobs": self._logprobs(state.entries),
                "finish_reason": state.end.finish_reason,
                **state.end.stop_reason_field,
            }
            if self._body.return_token_ids:
                choice["token_ids"] = state.token_ids
            choices.append(choice)
        return choices

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._chunk(choice)

    def _logprobs(self, entries: Iterable[TokenEntry]) -> dict[str, Any] | None:
        return self._formatter.chat(entries) if self._body.logprobs else None
