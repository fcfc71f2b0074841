"""The shape of /v1/completions: one object for whole responses and for each chunk."""

from typing import Any

from engine.types import EngineOutput
from server.answer import speculation_stats, usage
from server.choice import Choice, ChoiceDelta
from server.job import Job
from server.schemas.completion import CompletionRequest
from server.text import TextCodec


class CompletionAnswer:
    """Implements Answer."""

    def __init__(
        self, body: CompletionRequest, job: Job, tokenizer: TextCodec, fingerprint: str
    ) -> None:
        self._request = body
        self._job = job
        self._fingerprint = fingerprint
        self._choices = [Choice(tokenizer, body.stop) for _ in job.requests]
        self._texts: list[list[str]] = [[] for _ in job.requests]
        self._ends: dict[int, ChoiceDelta] = {}
        options = body.stream_options
        self._sends_usage = options is not None and options.include_usage

    @property
    def is_done(self) -> bool:
        return len(self._ends) == len(self._choices)

    def feed(self, index: int, output: EngineOutput) -> list[dict[str, Any]]:
        delta = self._choices[index].push(output)
        self._texts[index].append(delta.text)
        if delta.finish_reason is not None:
            self._ends[index] = delta
        elif not delta.text:
            return []
        chunk = self._frame([_choice(index, delta.text, delta)])
        if self._sends_usage:
            chunk["usage"] = None
        elif self.is_done:
            self._add_extras(chunk)
        return [chunk]

    def tail(self) -> list[dict[str, Any]]:
        if not self._sends_usage:
            return []
        chunk = self._frame([])
        self._add_extras(chunk)
        chunk["usage"] = usage(self._job, self._choices)
        return [chunk]

    def body(self) -> dict[str, Any]:
        choices = [
            _choice(index, "".join(texts), self._ends[index])
            for index, texts in enumerate(self._texts)
        ]
        body = self._frame(choices)
        self._add_extras(body)
        body["usage"] = usage(self._job, self._choices)
        return body

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._job.response_id,
            "object": "text_completion",
            "created": self._job.created,
            "model": self._request.model,
            "choices": choices,
        }

    def _add_extras(self, chunk: dict[str, Any]) -> None:
        chunk["system_fingerprint"] = self._fingerprint
        if self._request.speculation.stats:
            chunk["speculation"] = speculation_stats(self._job, self._choices)


def _choice(index: int, text: str, end: ChoiceDelta) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": end.finish_reason,
    }
    if end.stop_reason is not None:
        choice["stop_reason"] = end.stop_reason
    return choice
