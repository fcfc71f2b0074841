"""One request's state inside the engine, and the one table of its legal transitions."""

from enum import Enum, auto

from engine.errors import OverloadError, RequestError, is_out_of_memory
from engine.spec.drafter import Drafter, DraftLimits, Needs
from engine.text.stop import StopScanner
from engine.types import EngineRequest, FinishReason, SpecStats, TokenLogprob


class RequestStatus(Enum):
    """Where a request is in its life."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


_LEGAL = {
    RequestStatus.WAITING: (RequestStatus.RUNNING, RequestStatus.FINISHED),
    RequestStatus.RUNNING: (RequestStatus.FINISHED,),
    RequestStatus.FINISHED: (),
}


class Request:
    """A sequence in work. `token_ids` is the live list: prompt, then committed tokens.

    `committed_len` rows of its slot hold the KV of as many leading tokens. While decoding that is
    all but the last token, the anchor.
    """

    def __init__(
        self,
        request: EngineRequest,
        drafter: Drafter | None,
        scanner: StopScanner | None,
        eos_token_ids: frozenset[int],
        max_model_len: int,
    ) -> None:
        self.source = request
        self.request_id = request.request_id
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.status = RequestStatus.WAITING
        self.slot: int | None = None
        self.committed_len = 0
        self.num_cached_tokens = 0
        self.drafter = drafter
        self.stats = SpecStats()
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.error_code: str | None = None
        self.scheduled_time = self.first_token_time = self.last_token_time = 0.0
        self._scanner = scanner
        sampling = request.sampling
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._eos_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self._max_len = min(max_model_len, self.num_prompt_tokens + sampling.max_tokens)

    @property
    def needs(self) -> Needs:
        """What the drafter reads of the target's rows."""
        return self.drafter.needs if self.drafter else Needs()

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether the request itself reads every prompt row's logits."""
        return self.source.sampling.prompt_logprobs is not None

    @property
    def num_output_tokens(self) -> int:
        """Committed tokens behind the prompt."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_complete(self) -> bool:
        """Whether no token may be added any more."""
        return len(self.token_ids) >= self._max_len

    def limits(self) -> DraftLimits:
        """Bounds of the next tree: never past max_tokens or the context's end.

        A path of k accepted nodes yields k + 1 tokens, so depth stays one below what is left.
        """
        plan = self.source.speculation
        left = self._max_len - len(self.token_ids) - 1
        return DraftLimits(plan.width, min(plan.depth, left), left, plan.budget)

    def to(self, status: RequestStatus) -> None:
        """Change the state. Raises RuntimeError for a transition that the table does not allow."""
        if status not in _LEGAL[self.status]:
            raise RuntimeError(f"{self.request_id}: {self.status.name} -> {status.name}")
        self.status = status

    def finish(self, reason: FinishReason) -> None:
        """End the request. Happens exactly once."""
        self.to(RequestStatus.FINISHED)
        self.finish_reason = reason

    def fail(self, error: Exception) -> None:
        """End the request because of `error`: at its own fault if that is a RequestError."""
        if isinstance(error, RequestError):
            self.finish(FinishReason.INVALID)
            self.error, self.error_code = str(error), error.code
        else:
            has_room = not (isinstance(error, OverloadError) or is_out_of_memory(error))
            self.finish(FinishReason.ERROR if has_room else FinishReason.OVERLOAD)
            self.error = f"{type(error).__name__}: {error}"

    def commit(self, token_id: int) -> FinishReason | None:
        """Add one drawn token and say whether the request ends with it, and why.

        An end of sequence or a stop that completes on the last allowed token is a stop.
        """
        self.token_ids.append(token_id)
        if token_id in self._eos_ids:
            return FinishReason.STOP
        if token_id in self._stop_ids:
            self.stop_reason = token_id
            return FinishReason.STOP
        if self._scanner is not None:
            matched = self._scanner.push(token_id)
            if matched is not None:
                self.stop_reason = matched
                return FinishReason.STOP
        return FinishReason.LENGTH if self.is_complete else None
