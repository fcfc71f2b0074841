"""One HTTP request as the engine sees it: several sequences, and what their answers share."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import EngineRequest
from server.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as an answer repeats it. `offsets`: where each token begins, in code points."""

    text: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """`requests` are prompt-major: candidate j of prompt i has index `i * num_candidates + j`."""

    response_id: str
    created: int  # unix seconds
    num_candidates: int
    requests: tuple[EngineRequest, ...]
    echoes: Sequence[Echo] = ()  # one per prompt, if asked for
    tool_format: ToolFormat | None = None  # how tool calls stand in the text; None: there are none
    is_exact: bool = False  # the engine's promise: bits depend on a sequence's own tokens alone

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each prompt once however many choices it has."""
        firsts = self.requests[:: self.num_candidates]
        return sum(len(request.prompt_token_ids) for request in firsts)

    @property
    def method(self) -> str:
        """The speculation method that all choices use."""
        return self.requests[0].speculation.method
