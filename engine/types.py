"""Plain data that crosses the border between the server and the engine thread.

Everything here is a frozen dataclass of ints, floats, strings and tuples, so that the border
could become a process border by changing one file. No tensors, no callbacks, no text state.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended. Every request ends exactly once."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"  # the engine is at fault
    OVERLOAD = "overload"  # nobody is: there is no room for it now, and there may be later
    INVALID = "invalid"  # the request is: what it demands cannot be had


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a request's tokens become text: the same where stop strings are searched and where the
    answer is written, so that both see one text."""

    skips_special: bool = True  # leave control tokens out
    kept_token_ids: tuple[int, ...] = ()  # control tokens that are spelled all the same
    continues_text: bool = False  # text stands before: the first token keeps its leading space

    def shows(self, token_id: int, is_special: bool) -> bool:
        """Whether a token, control token or not, is part of the text."""
        return not (is_special and self.skips_special) or token_id in self.kept_token_ids


PLAIN_TEXT = TextRules()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Already validated; `seed` is always set (fresh if not asked)."""

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    text: TextRules = PLAIN_TEXT  # of what stop strings are searched in
    logprobs: int | None = None  # alternatives per generated token; 0: the token's own only
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    grammar: str | None = None  # compiled by engine.text.grammars; the text follows it to its end

    @property
    def is_greedy(self) -> bool:
        """Whether a draw is the argmax of the processed logits."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """A request's resolved speculation: the method and hard bounds on every tree it drafts.

    `width`: branches per node, a copied spine not counted; `depth`: levels below
    the anchor; `budget`: nodes per step without the anchor, exploration included. `base_budget` <=
    `budget` is where a method starts that grows its tree with confidence (Goose); equal to
    `budget` when the request named one.
    """

    method: str
    width: int
    depth: int
    budget: int
    base_budget: int


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to complete. `n` choices or a list of prompts are several of these."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    speculation: SpeculationPlan
    arrival_time: float  # time.monotonic()
    prediction_token_ids: tuple[int, ...] = ()  # text to expect; read by `auto`


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target model's own log-probabilities at one position, before any sampling rule."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class SpecStats:
    """Speculation counters of one request or of one step; they add up."""

    steps: int = 0  # target forwards that gave tokens
    drafts: int = 0  # steps with a non-empty candidate tree
    draft_tokens: int = 0  # verified nodes, anchors not counted
    explored_tokens: int = 0  # exploration nodes, computed but never verified
    accepted_tokens: int = 0  # committed draft tokens, after any cut
    hit_tokens: int = 0  # tokens committed in steps with a candidate tree, bonus included
    tokens: int = 0  # committed tokens
    accepted_per_depth: tuple[int, ...] = ()  # [depth - 1] -> committed draft tokens of that depth
    accepted_prediction_tokens: int = 0  # of the client's prediction, found in the text in line
    rejected_prediction_tokens: int = 0  # of the prediction, not in the text

    def __add__(self, other: "SpecStats") -> "SpecStats":
        a, b = self.accepted_per_depth, other.accepted_per_depth
        if len(a) < len(b):
            a, b = b, a
        return SpecStats(
            steps=self.steps + other.steps,
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            explored_tokens=self.explored_tokens + other.explored_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            hit_tokens=self.hit_tokens + other.hit_tokens,
            tokens=self.tokens + other.tokens,
            accepted_per_depth=tuple(
                count + (b[depth] if depth < len(b) else 0) for depth, count in enumerate(a)
            ),
            accepted_prediction_tokens=(
                self.accepted_prediction_tokens + other.accepted_prediction_tokens
            ),
            rejected_prediction_tokens=(
                self.rejected_prediction_tokens + other.rejected_prediction_tokens
            ),
        )

    @property
    def tau(self) -> float:
        """Decoding efficiency: completion tokens per target forward."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of steps that had a non-empty candidate tree."""
        return self.drafts / self.steps if self.steps else 0.0

    @property
    def accept_length(self) -> float:
        """Mean tokens per hit step, bonus included."""
        return self.hit_tokens / self.drafts if self.drafts else 0.0


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Moments of one request, seconds of time.monotonic()."""

    arrival: float
    scheduled: float
    first_token: float
    last_token: float


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step gave one request. The last one carries `finish_reason`, exactly once."""

    request_id: str
    new_token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per new token, if asked
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # once, with the first output
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that matched
    error: str | None = None  # with ERROR, for the log; with INVALID, for the client
    error_code: str | None = None  # with INVALID: OpenAI's machine-readable code
    num_cached_tokens: int = 0
    stats: SpecStats | None = None  # with finish_reason
    times: RequestTimes | None = None  # with finish_reason, if the request was ever scheduled


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Everything that one engine step gave, in one message."""

    outputs: tuple[EngineOutput, ...] = ()
    spec: tuple[tuple[str, SpecStats], ...] = ()  # (method, this step's counters)
    num_running: int = 0
    num_waiting: int = 0
    num_prompt_tokens: int = 0  # prompt tokens computed in this step
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    walk_seconds: float = 0.0
    num_rows: int = 0
    price: float = 0.0  # of `auto`: tokens per second that a node must promise per second it costs
    predicted_tokens: float = 0.0  # of `auto`: expected of this step's requests together
    trees: tuple[tuple[str, int], ...] = ()  # (method, verified nodes) of each tree of this step
    num_prefix_queries: int = 0  # prompt tokens of requests that were given a slot in this step
    num_prefix_hits: int = 0  # those of them whose KV a slot still held
    num_memory_faults: int = 0  # passes that found too little memory and were made smaller
    dead: str | None = None  # the engine has died with this message; nothing follows


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known once the model is loaded."""

    model_name: str
    architecture: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    max_batch: int
    eos_token_ids: tuple[int, ...]
    is_exact: bool = False  # a row's bits depend on its own tokens only (numerics of the backend)
    created: int = field(default=0)  # unix seconds
