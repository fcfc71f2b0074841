"""The shapes of /v1/chat/completions: a message, or deltas of one."""

import uuid
from collections.abc import Iterable
from typing import Any

from engine.api import FinishReason
from server.answer import Answer
from server.choice import ChoiceDelta, TokenEntry
from server.job import Job
from server.schemas.chat import ChatRequest
from server.text import TextCodec
from server.tool_parser import CallDelta, ToolParser


class ChatAnswer(Answer):
    """Assistant messages. A stream opens each with its role and closes it with an empty delta."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def __init__(self, body: ChatRequest, job: Job, tokenizer: TextCodec, fingerprint: str) -> None:
        super().__init__(body, job, tokenizer, fingerprint, body.top_logprobs)
        self._body = body
        form = job.tool_format
        self._parsers = [ToolParser(form) for _ in job.requests] if form else []
        self._prompt_token_ids = job.requests[0].prompt_token_ids

    def body(self) -> dict[str, Any]:
        body = super().body()
        if self._body.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt_token_ids)
        return body

    def _chunks(self, index: int, delta: ChoiceDelta, is_first: bool) -> list[dict[str, Any]]:
        chunks = []
        shows_ids = self._body.return_token_ids
        text, calls = self._parse(index, delta)
        if is_first:
            opening = self._delta(index, {"role": "assistant", "content": ""})
            if shows_ids:
                opening["prompt_token_ids"] = list(self._prompt_token_ids)
            chunks.append(opening)
        if text or delta.entries or (shows_ids and delta.token_ids):
            chunk = self._delta(index, {"content": text}, self._logprobs(delta.entries))
            if shows_ids:
                chunk["choices"][0]["token_ids"] = list(delta.token_ids)
            chunks.append(chunk)
        chunks += [self._delta(index, {"tool_calls": [self._call_delta(c)]}) for c in calls]
        if delta.finish_reason is not None:
            chunk = self._delta(index, {})
            num_calls = self._parsers[index].num_calls if self._parsers else 0
            reason = _finish_reason(delta.finish_reason, num_calls)
            chunk["choices"][0] |= {"finish_reason": reason, **delta.stop_reason_field}
            chunks.append(chunk)
        return chunks

    def _whole_choices(self) -> list[dict[str, Any]]:
        choices = []
        for index, state in enumerate(self._choices):
            message = self._message(state.text)
            num_calls = len(message.get("tool_calls", ()))
            choice: dict[str, Any] = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(state.entries),
                "finish_reason": _finish_reason(state.end.finish_reason, num_calls),
                **state.end.stop_reason_field,
            }
            if self._body.return_token_ids:
                choice["token_ids"] = state.token_ids
            choices.append(choice)
        return choices

    def _parse(self, index: int, delta: ChoiceDelta) -> tuple[str, list[CallDelta]]:
        """A delta's text without tool calls, and what it adds to them."""
        if not self._parsers:
            return delta.text, []
        parser = self._parsers[index]
        parsed = parser.push(delta.text)
        if delta.finish_reason is None:
            return parsed.content, parsed.calls
        rest = parser.flush()
        return parsed.content + rest.content, parsed.calls + rest.calls

    def _message(self, text: str) -> dict[str, Any]:
        """The whole message: read as the stream reads it, so that both say the same."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        form = self._job.tool_format
        if form is None:
            return message
        parser = ToolParser(form)
        parsed = parser.push(text)
        message["content"] = parsed.content + parser.flush().content
        calls: list[dict[str, Any]] = []
        for delta in parsed.calls:
            if delta.name is not None:
                calls.append(_call(delta.name))
            calls[delta.index]["function"]["arguments"] += delta.arguments
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
        return message

    @staticmethod
    def _call_delta(delta: CallDelta) -> dict[str, Any]:
        if delta.name is not None:
            return {"index": delta.index, **_call(delta.name)}
        return {"index": delta.index, "function": {"arguments": delta.arguments}}

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._chunk(choice)

    def _logprobs(self, entries: Iterable[TokenEntry]) -> dict[str, Any] | None:
        return self._formatter.chat(entries) if self._body.logprobs else None


def _call(name: str) -> dict[str, Any]:
    """A call as it begins, with an id of its own."""
    function = {"name": name, "arguments": ""}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _finish_reason(reason: str | None, num_calls: int) -> str | None:
    return "tool_calls" if reason == FinishReason.STOP and num_calls else reason
