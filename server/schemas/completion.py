"""The body of POST /v1/completions."""

from typing import ClassVar

from pydantic import Field

from server.errors import bad_request
from server.schemas.generation import UNSUPPORTED, GenerationRequest
from server.schemas.prompt import Prompts

MAX_BEST_OF = 20


class CompletionRequest(GenerationRequest):
    """A legacy completion."""

    unsupported: ClassVar[frozenset[str]] = UNSUPPORTED | {"suffix", "response_format"}

    prompt: Prompts
    max_tokens: int = Field(16, ge=0)
    best_of: int | None = Field(None, ge=1, le=MAX_BEST_OF)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    add_special_tokens: bool = True

    @property
    def has_own_max_tokens(self) -> bool:
        """Whether the client named `max_tokens`; if not, it shrinks to what the context holds."""
        return "max_tokens" in self.model_fields_set

    @property
    def num_candidates(self) -> int:
        """Choices generated per prompt. Raises ApiError where `best_of` contradicts the rest."""
        if self.best_of is None:
            return self.n
        if self.best_of < self.n:
            raise bad_request("'best_of' must not be below 'n'.", "best_of")
        if self.stream and self.best_of > self.n:
            raise bad_request("'best_of' above 'n' cannot be streamed.", "best_of")
        return self.best_of
