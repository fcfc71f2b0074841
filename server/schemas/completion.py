"""The body of POST /v1/completions."""

from typing import ClassVar

from pydantic import Field

from server.schemas.prompt import Prompts
from server.schemas.sampling import SamplingFields
from server.schemas.speculation import SpeculationFields
from server.schemas.stream_options import StreamOptions

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """A legacy completion. `user` is accepted, as OpenAI defines it, and changes nothing."""

    unsupported: ClassVar[frozenset[str]] = frozenset(
        {"suffix", "best_of", "echo", "logprobs", "prompt_logprobs", "bad_words", "prediction"}
        | {"structured_outputs", "response_format", "truncate_prompt_tokens", "cache_salt"}
        | {"priority", "allowed_token_ids", "spaces_between_special_tokens"}
    )

    model: str
    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0)
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculation: SpeculationFields = SpeculationFields()
    user: str | None = None
