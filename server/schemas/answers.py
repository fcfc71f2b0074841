"""What the routes answer, for the published contract: answers are built as plain dicts on the hot
path, so nothing but the document and its tests reads these."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads typing's own from Python 3.12 on


class PredictionDetails(TypedDict):
    """What became of the tokens of `prediction`."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptDetails(TypedDict):
    """Of the prompt's tokens: those whose keys and values were kept from before."""

    cached_tokens: int


class Usage(TypedDict):
    """Token counts; the prompt counts once, whatever `n`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NotRequired[PredictionDetails]


class SpeculationStats(TypedDict):
    """Counters over all choices of an answer, with `speculation.stats`."""

    method: str
    steps: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    tau: float
    hit_rate: float
    accept_length: float
    accepted_per_depth: list[int]
    exact: bool


class _Frame(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: NotRequired[str]
    speculation: NotRequired[SpeculationStats]


class CompletionLogprobs(TypedDict):
    """Four parallel arrays; the first token of an echoed prompt has no values."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Ending(TypedDict):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: NotRequired[int | str]
    token_ids: NotRequired[list[int]]


class CompletionChoice(_Ending):
    """A text, or a piece of one in a stream; `finish_reason` is null until its end."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int]]


class Completion(_Frame):
    """The body of a completion, and each chunk of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ChatTokenLogprob(TypedDict):
    """A token; `bytes` is empty for one that is no part of the text."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(ChatTokenLogprob):
    """A chosen token with its alternatives."""

    top_logprobs: list[ChatTokenLogprob]


class ChatLogprobs(TypedDict):
    """One entry per token."""

    content: list[ChatLogprob]
    refusal: None


class CallAnswer(TypedDict):
    """The name of a called function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallAnswer(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CallAnswer


class ChatMessageAnswer(TypedDict):
    """The assistant's message; `content` may be null beside tool calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallAnswer]]


class ChatChoice(_Ending):
    """A whole message."""

    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None


class ChatCompletion(_Frame):
    """The body of a chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]


class CallPiece(TypedDict):
    """What a chunk adds to a call."""

    name: NotRequired[str]
    arguments: str


class ToolCallPiece(TypedDict):
    """A call's beginning, with `id` and `type`, or more of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CallPiece


class ChatDelta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallPiece]]


class ChatChunkChoice(_Ending):
    """A piece of a message; `finish_reason` is null until its end."""

    delta: ChatDelta
    logprobs: ChatLogprobs | None


class ChatCompletionChunk(_Frame):
    """One event of a streamed chat completion."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]


class TreeSize(TypedDict):
    """Bounds on a tree."""

    width: int
    depth: int
    budget: int


class ModelSpeculation(TreeSize):
    """The default method, its bounds, the model's, and those of every method; and whether answers
    are bit for bit the same with each."""

    method: str
    bounds: TreeSize
    methods: dict[str, TreeSize]
    exact: bool


class ModelAnswer(TypedDict):
    """OpenAI's model object and this server's extensions of it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    speculation: ModelSpeculation


class ModelList(TypedDict):
    """All served models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class Tokens(TypedDict):
    """Token ids of a text or of messages."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(TypedDict):
    """The text of token ids."""

    prompt: str


class Health(TypedDict):
    """The process lives."""

    status: Literal["ok"]


class Readiness(Health):
    """The server takes requests."""

    running: int
    waiting: int


class Version(TypedDict):
    """The server's version."""

    version: str


class ConfigEntry(TypedDict):
    """A configured value, and what set it."""

    value: Any
    origin: str


ConfigAnswer = dict[str, ConfigEntry]
