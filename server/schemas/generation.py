"""What completions and chat share: everything but the prompt and the shape of the answer."""

from pydantic import Field

from server.schemas.prediction import PredictionFields
from server.schemas.sampling import SamplingFields
from server.schemas.speculation import SpeculationFields
from server.schemas.stream_options import StreamOptions
from server.schemas.structure import StructuredOutputs

# Known elsewhere, not honoured here: refused by name on both routes.
UNSUPPORTED = frozenset(
    {"allowed_token_ids", "bad_words", "cache_salt", "guided_json", "guided_regex"}
    | {"priority", "prompt_logprobs", "request_id", "spaces_between_special_tokens"}
)


class GenerationRequest(SamplingFields):
    """`user` is accepted as OpenAI defines it and changes nothing."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculation: SpeculationFields = SpeculationFields()
    prediction: PredictionFields | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    truncate_prompt_tokens: int | None = Field(None, ge=1)

    @property
    def sends_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def sends_usage_always(self) -> bool:
        """Whether every chunk carries the token counts so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats
