"""From validated bodies to engine requests: tokens, limits of this model, seeds, speculation.

Everything that can be wrong with a request is found here, before the engine hears of it.
"""

import hashlib
import secrets
import time
import uuid
from collections.abc import Sequence

from engine.config import SpeculationConfig
from engine.errors import RequestError
from engine.types import EngineInfo, EngineRequest, SamplingParams, SpeculationPlan
from server.errors import ApiError, bad_request
from server.job import Job
from server.schemas.completion import DEFAULT_MAX_TOKENS, CompletionRequest
from server.schemas.prompt import PromptText
from server.schemas.sampling import SamplingFields
from server.schemas.speculation import SpeculationFields
from server.settings import ServerSettings
from server.text import TextCodec


def choice_seed(seed: int | None, choice: int) -> int:
    """The seed of one of n choices: fresh entropy when the request has none, its own for the first,
    and a value derived from it for the others, so that they differ and can be asked for again."""
    if seed is None:
        return secrets.randbits(63)
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class RequestConverter:
    """Knows the model's limits and turns bodies into jobs. Thread-safe: it keeps no state."""

    def __init__(
        self,
        tokenizer: TextCodec,
        info: EngineInfo,
        speculation: SpeculationConfig,
        settings: ServerSettings,
    ) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._speculation = speculation
        self._settings = settings

    def completion(self, body: CompletionRequest, arrival: float) -> Job:
        """The job of a completion. Raises ApiError or RequestError naming the field."""
        self._check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise bad_request("'stream_options' needs 'stream: true'.", "stream_options")
        self._check_counts(body.n, len(body.prompt))
        prompts = [self._prompt_token_ids(prompt) for prompt in body.prompt]
        lengths = [self._max_tokens(len(ids), body.max_tokens) for ids in prompts]
        return self._job("cmpl", body, prompts, lengths, arrival)

    def _job(
        self,
        prefix: str,
        body: CompletionRequest,
        prompts: Sequence[tuple[int, ...]],
        lengths: Sequence[int],
        arrival: float,
    ) -> Job:
        plan = self._plan(body.speculation)
        job_id = f"{prefix}-{uuid.uuid4().hex}"
        requests: list[EngineRequest] = []
        for ids, max_tokens in zip(prompts, lengths, strict=True):
            for choice in range(body.n):
                sampling = self._sampling(body, max_tokens, choice)
                request_id = f"{job_id}-{len(requests)}"
                requests.append(EngineRequest(request_id, ids, sampling, plan, arrival))
        return Job(job_id, int(time.time()), body.n, tuple(requests))

    def _plan(self, wish: SpeculationFields) -> SpeculationPlan:
        return self._speculation.resolve(wish.method, wish.width, wish.depth, wish.budget)

    def _check_model(self, name: str) -> None:
        if name != self._info.model_name:
            raise model_not_found(name)

    def _check_counts(self, n: int, num_prompts: int) -> None:
        if num_prompts > self._settings.max_prompts:
            message = (
                f"at most {self._settings.max_prompts} prompts per request, got {num_prompts}."
            )
            raise bad_request(f"Invalid 'prompt': {message}", "prompt", "array_above_max_length")
        if n > self._settings.max_n:
            message = f"expected a value <= {self._settings.max_n}, but got {n} instead."
            raise bad_request(f"Invalid 'n': {message}", "n", "integer_above_max_value")

    def _prompt_token_ids(self, prompt: PromptText) -> tuple[int, ...]:
        if isinstance(prompt, str):
            try:
                prompt = tuple(self._tokenizer.encode(prompt))
            except RequestError as error:
                raise bad_request(str(error), "prompt") from error
            if not prompt:
                message = "Invalid 'prompt': it holds no token."
                raise bad_request(message, "prompt", "empty_prompt")
        self._check_vocabulary(prompt, "prompt")
        return prompt

    def _check_vocabulary(self, ids: Sequence[int], param: str) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._info.vocab_size):
            wrong = next(i for i in ids if not 0 <= i < self._info.vocab_size)
            message = f"token id {wrong} is outside the vocabulary of {self._info.vocab_size}."
            raise bad_request(f"Invalid '{param}': {message}", param)

    def _max_tokens(self, prompt_len: int, asked: int | None) -> int:
        """How many tokens may follow a prompt. An explicit wish must fit; the default shrinks."""
        room = self._info.max_model_len - prompt_len
        if room < (1 if asked is None else min(asked, 1)):
            raise self._too_long(
                prompt_len, DEFAULT_MAX_TOKENS if asked is None else asked, "prompt"
            )
        if asked is None:
            return min(DEFAULT_MAX_TOKENS, room)
        if asked > room:
            raise self._too_long(prompt_len, asked, "max_tokens")
        return asked

    def _too_long(self, prompt_len: int, max_tokens: int, param: str) -> ApiError:
        message = (
            f"This model's maximum context length is {self._info.max_model_len} tokens. However, "
            f"you requested {prompt_len + max_tokens} tokens ({prompt_len} in the prompt, "
            f"{max_tokens} in the completion). Reduce the length of the prompt or completion."
        )
        return bad_request(message, param, "context_length_exceeded")

    def _sampling(self, body: SamplingFields, max_tokens: int, choice: int) -> SamplingParams:
        self._check_vocabulary(body.stop_token_ids, "stop_token_ids")
        self._check_vocabulary([token_id for token_id, _ in body.logit_bias], "logit_bias")
        if body.min_tokens > max_tokens:
            message = f"it exceeds the {max_tokens} tokens that the completion may have."
            raise bad_request(f"Invalid 'min_tokens': {message}", "min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            seed=choice_seed(body.seed, choice),
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            min_p=body.min_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=body.logit_bias,
            min_tokens=body.min_tokens,
            stop=body.stop,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
        )


def model_not_found(name: str) -> ApiError:
    """The 404 for a model that is not served here."""
    message = f"The model '{name[:200]}' does not exist or you do not have access to it."
    return ApiError(404, message, param="model", code="model_not_found")
