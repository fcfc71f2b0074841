"""One HTTP request as the engine sees it: several sequences, and what their answers share."""

from dataclasses import dataclass

from engine.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Job:
    """`requests` are prompt-major: choice j of prompt i has index `i * n + j`."""

    response_id: str
    created: int  # unix seconds
    n: int
    requests: tuple[EngineRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each prompt once however many choices it has."""
        return sum(len(request.prompt_token_ids) for request in self.requests[:: self.n])

    @property
    def method(self) -> str:
        """The speculation method that all choices use."""
        return self.requests[0].speculation.method
