"""The shape of /v1/completions: one object for whole responses and for each chunk."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from server.answer import Answer
from server.choice import ChoiceDelta, TokenEntry
from server.job import Job
from server.schemas.completion import CompletionRequest
from server.text import TextCodec


class CompletionAnswer(Answer):
    """Text choices, prompt-major, with the prompt before the text if `echo` asks for it."""

    chunk_object = "text_completion"
    body_object = "text_completion"

    def __init__(
        self, body: CompletionRequest, job: Job, tokenizer: TextCodec, fingerprint: str
    ) -> None:
        super().__init__(body, job, tokenizer, fingerprint, body.logprobs)
        self._body = body

    def _chunks(self, index: int, delta: ChoiceDelta, is_first: bool) -> list[dict[str, Any]]:
        echoed = self._echoed(index) if is_first else ""
        entries = self._entries(index, delta.entries, is_first)
        shows_ids = self._body.return_token_ids and (is_first or delta.token_ids)
        text = echoed + delta.text
        if not (text or entries or shows_ids or delta.finish_reason):
            return []
        choice = self._choice(index, text, entries, delta)
        if shows_ids:
            choice["token_ids"] = list(delta.token_ids)
            if is_first:
                choice["prompt_token_ids"] = list(self._job.requests[index].prompt_token_ids)
        return [self._chunk(choice)]

    def _whole_choices(self) -> list[dict[str, Any]]:
        choices: list[dict[str, Any]] = []
        for first in range(0, len(self._choices), self._job.num_candidates):
            for index in self._best(first):
                state, text = self._choices[index], self._echoed(index) + self._choices[index].text
                entries = self._entries(index, state.entries, is_first=True)
                choice = self._choice(len(choices), text, entries, state.end)
                if self._body.return_token_ids:
                    choice["token_ids"] = state.token_ids
                    choice["prompt_token_ids"] = list(self._job.requests[index].prompt_token_ids)
                choices.append(choice)
        return choices

    def _choice(
        self, index: int, text: str, entries: list[TokenEntry], end: ChoiceDelta
    ) -> dict[str, Any]:
        wanted = self._body.logprobs is not None
        logprobs = self._formatter.completion(entries) if wanted else None
        choice = {"index": index, "text": text, "logprobs": logprobs}
        return {**choice, "finish_reason": end.finish_reason, **end.stop_reason_field}

    def _entries(self, index: int, own: Iterable[TokenEntry], is_first: bool) -> list[TokenEntry]:
        """The prompt's entries, if they belong here, and those of the completion behind it."""
        base = len(self._echoed(index))
        shifted = [replace(entry, offset=base + entry.offset) for entry in own]
        known = self._choices[index].prompt_logprobs
        if not (is_first and self._body.echo and known is not None):
            return shifted
        echo = self._job.echoes[index // self._job.num_candidates]
        ids = self._job.requests[index].prompt_token_ids
        triples = zip(ids, known, echo.offsets, strict=True)
        return [*(TokenEntry(*triple) for triple in triples), *shifted]

    def _echoed(self, index: int) -> str:
        if not self._body.echo:
            return ""
        return self._job.echoes[index // self._job.num_candidates].text

    def _best(self, first: int) -> list[int]:
        """The n candidates of a prompt that go out: the likeliest per token, if there are more."""
        indices = range(first, first + self._job.num_candidates)
        if self._job.num_candidates == self._body.n:
            return list(indices)
        by_likelihood = sorted(indices, key=lambda i: self._choices[i].mean_logprob, reverse=True)
        return by_likelihood[: self._body.n]
