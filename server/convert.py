"""From validated bodies to engine requests: tokens, limits of this model, seeds, speculation.

Everything that can be wrong with a request is found here, before the engine hears of it.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.api import (
    ConfigError,
    EngineInfo,
    EngineRequest,
    RequestError,
    TextRules,
)
from server.errors import ApiError, bad_request
from server.job import Echo, Job
from server.live_speculation import LiveSpeculation
from server.sampling_params import choice_seed, sampling_params
from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest
from server.schemas.generation import GenerationRequest
from server.schemas.prompt import PromptText
from server.schemas.template import TemplateFields
from server.schemas.tools import Tool
from server.settings import ServerSettings
from server.speculation_resolver import SpeculationResolver
from server.structure import Structure, shown_tools
from server.text import TextCodec
from server.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class _Sequences:
    """What the routes decide differently: the prompts, their lengths, and what to report."""

    prefix: str  # of the response id
    prompts: Sequence[tuple[int, ...]]
    max_tokens: Sequence[int]  # one per prompt
    texts: Sequence[TextRules]  # one per prompt: how its completion becomes text
    num_candidates: int
    logprobs: int | None
    prompt_logprobs: int | None = None
    echoes: Sequence[Echo] = ()
    grammar: str | None = None
    tool_format: ToolFormat | None = None


def model_not_found(name: str) -> ApiError:
    """The 404 for a model that is not served here."""
    message = f"The model '{name[:200]}' does not exist or you do not have access to it."
    return ApiError(404, message, param="model", code="model_not_found")


class RequestConverter:
    """Knows the model's limits and turns bodies into jobs. Thread-safe: it keeps no state."""

    def __init__(
        self,
        tokenizer: TextCodec,
        info: EngineInfo,
        speculation: LiveSpeculation,
        settings: ServerSettings,
    ) -> None:
        """Raises ConfigError if the configured chat template cannot be read."""
        self._tokenizer = tokenizer
        self._info = info
        self._speculation = SpeculationResolver(tokenizer, info, speculation)
        self._settings = settings
        self._template = _read_template(settings.chat_template)
        self.structure = Structure(tokenizer, info, self._template, settings.tool_parser)

    def completion(self, body: CompletionRequest, arrival: float) -> Job:
        """The job of a completion. Raises ApiError or RequestError naming the field."""
        self.check_model(body.model)
        self._check_counts(body, len(body.prompt))
        num_candidates = body.num_candidates
        encoded = [self.prompt_token_ids(p, body.add_special_tokens) for p in body.prompt]
        prompts = [self._truncate(ids, body) for ids in encoded]
        wish = body.max_tokens if body.has_own_max_tokens else None
        lengths = [self._max_tokens(len(ids), wish, body.max_tokens) for ids in prompts]
        echoes: list[Echo] = []
        if body.echo:
            sources = [
                text if ids == whole else ids
                for text, whole, ids in zip(body.prompt, encoded, prompts, strict=True)
            ]
            echoes = [
                self._echo(source, ids, body.add_special_tokens)
                for source, ids in zip(sources, prompts, strict=True)
            ]
        ranks_candidates = num_candidates > body.n and body.logprobs is None
        sequences = _Sequences(
            "cmpl",
            prompts,
            lengths,
            [self._continuing(ids, body) for ids in prompts],
            num_candidates,
            logprobs=0 if ranks_candidates else body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            echoes=echoes,
            grammar=self.structure.grammar(body),
        )
        return self._job(body, sequences, arrival)

    def chat(self, body: ChatRequest, arrival: float) -> Job:
        """The job of a chat completion. Raises ApiError or RequestError naming the field."""
        self.check_model(body.model)
        self._check_counts(body, 1)
        logprobs = body.num_logprobs
        grammar = self.structure.grammar(body)
        whole = self.chat_token_ids(body, body.add_special_tokens, shown_tools(body))
        ids = self._truncate(whole, body)
        wish, field = body.length_wish
        room = self._info.max_model_len - len(ids)
        length = self._max_tokens(len(ids), wish, max(room, 1), "messages", field)
        form = self.structure.tool_format(body)
        markers = form.control_ids if form else ()
        rules = TextRules(body.skip_special_tokens, markers, body.continue_final_message)
        sequences = _Sequences(
            "chatcmpl",
            [ids],
            [length],
            [rules],
            body.n,
            logprobs,
            grammar=grammar,
            tool_format=form,
        )
        return self._job(body, sequences, arrival)

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 unless `name` is served here."""
        if name != self._info.model_name:
            raise model_not_found(name)

    def chat_token_ids(
        self, body: TemplateFields, add_special_tokens: bool, tools: Sequence[Tool]
    ) -> tuple[int, ...]:
        """The prompt that the model's template makes of messages and tools."""
        text = self._tokenizer.render_chat(
            [message.for_template() for message in body.messages],
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            tools=[tool.for_template() for tool in tools] or None,
            template=self._template,
            variables=body.chat_template_kwargs,
        )
        return self.prompt_token_ids(text, add_special_tokens, "messages")

    def prompt_token_ids(
        self, prompt: PromptText, add_special_tokens: bool, param: str = "prompt"
    ) -> tuple[int, ...]:
        """Token ids of one prompt: at least one, all in the vocabulary. Raises ApiError."""
        if isinstance(prompt, str):
            try:
                prompt = tuple(self._tokenizer.encode(prompt, add_special_tokens))
            except RequestError as error:
                raise bad_request(str(error), param) from error
            if not prompt:
                raise bad_request(f"Invalid '{param}': it holds no token.", param, "empty_prompt")
        self.check_vocabulary(prompt, param)
        return prompt

    def check_vocabulary(self, ids: Sequence[int], param: str) -> None:
        """Raises ApiError naming the first id that the model does not know."""
        if ids and not (min(ids) >= 0 and max(ids) < self._info.vocab_size):
            wrong = next(i for i in ids if not 0 <= i < self._info.vocab_size)
            message = f"token id {wrong} is outside the vocabulary of {self._info.vocab_size}."
            raise bad_request(f"Invalid '{param}': {message}", param)

    def _job(self, body: GenerationRequest, sequences: _Sequences, arrival: float) -> Job:
        if body.stream_options is not None and not body.stream:
            raise bad_request("'stream_options' needs 'stream: true'.", "stream_options")
        self.check_vocabulary(body.stop_token_ids, "stop_token_ids")
        self.check_vocabulary([token_id for token_id, _ in body.logit_bias], "logit_bias")
        prediction, plan = self._speculation.prediction(body), self._speculation.plan(body)
        job_id = f"{sequences.prefix}-{uuid.uuid4().hex}"
        requests: list[EngineRequest] = []
        prompts = zip(sequences.prompts, sequences.max_tokens, sequences.texts, strict=True)
        for ids, max_tokens, text in prompts:
            for choice in range(sequences.num_candidates):
                sampling = replace(
                    sampling_params(body, max_tokens, choice_seed(body.seed, choice), text),
                    logprobs=sequences.logprobs,
                    prompt_logprobs=sequences.prompt_logprobs,
                    grammar=sequences.grammar,
                )
                request_id = f"{job_id}-{len(requests)}"
                requests.append(EngineRequest(request_id, ids, sampling, plan, arrival, prediction))
        return Job(
            job_id,
            int(time.time()),
            sequences.num_candidates,
            tuple(requests),
            sequences.echoes,
            sequences.tool_format,
            self._info.is_exact,
        )

    def _continuing(self, prompt: Sequence[int], body: GenerationRequest) -> TextRules:
        """The rules of a text that goes on where the prompt's text ends, if it has any."""
        rules, codec = TextRules(body.skip_special_tokens), self._tokenizer
        has_text = any(rules.shows(token_id, codec.is_special(token_id)) for token_id in prompt)
        return replace(rules, continues_text=has_text)

    def _check_counts(self, body: GenerationRequest, num_prompts: int) -> None:
        if num_prompts > self._settings.max_prompts:
            message = (
                f"at most {self._settings.max_prompts} prompts per request, got {num_prompts}."
            )
            raise bad_request(f"Invalid 'prompt': {message}", "prompt", "array_above_max_length")
        if body.n > self._settings.max_n:
            message = f"expected a value <= {self._settings.max_n}, but got {body.n} instead."
            raise bad_request(f"Invalid 'n': {message}", "n", "integer_above_max_value")

    def _truncate(self, ids: tuple[int, ...], body: GenerationRequest) -> tuple[int, ...]:
        """The last `truncate_prompt_tokens` ids, so that the end of a long prompt stays."""
        keep = body.truncate_prompt_tokens
        return ids if keep is None else ids[-keep:]

    def _echo(self, prompt: PromptText, ids: tuple[int, ...], has_special_tokens: bool) -> Echo:
        """The prompt's text, and each token's offset. Tokens that were added around a text, such as
        a beginning-of-sequence token, have no width."""
        start, end = 0, len(ids)
        if isinstance(prompt, str) and has_special_tokens:
            plain = tuple(self._tokenizer.encode(prompt, False))
            starts = range(len(ids) - len(plain) + 1)
            start = next((at for at in starts if ids[at : at + len(plain)] == plain), 0)
            end = start + len(plain)
        decoder = self._tokenizer.detokenizer(TextRules(skips_special=False))
        offsets, text = [], ""
        for position, token_id in enumerate(ids):
            offsets.append(len(text))
            if start <= position < end:
                text += decoder.push([token_id])
        text += decoder.flush()
        return Echo(prompt if isinstance(prompt, str) else text, tuple(offsets))

    def _max_tokens(
        self,
        prompt_len: int,
        wish: int | None,
        default: int,
        prompt_field: str = "prompt",
        length_field: str = "max_tokens",
    ) -> int:
        """How many tokens may follow a prompt. An explicit wish must fit; the default shrinks."""
        room = self._info.max_model_len - prompt_len
        asked = default if wish is None else wish
        if room < min(asked, 1):
            raise self._too_long(prompt_len, asked, prompt_field)
        if wish is not None and wish > room:
            raise self._too_long(prompt_len, wish, length_field)
        return min(asked, room)

    def _too_long(self, prompt_len: int, max_tokens: int, param: str) -> ApiError:
        message = (
            f"This model's maximum context length is {self._info.max_model_len} tokens. However, "
            f"you requested {prompt_len + max_tokens} tokens ({prompt_len} in the prompt"
            f", {max_tokens} in the completion). Reduce the length of either."
        )
        return bad_request(message, param, "context_length_exceeded")


def _read_template(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.chat_template: cannot read {file}: {error}") from error
