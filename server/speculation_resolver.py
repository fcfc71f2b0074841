"""What a body wishes of speculation, checked against this engine and turned into its plan, and the
predicted text as tokens."""

from engine.api import EngineInfo, RequestError, SpeculationPlan
from server.errors import bad_request
from server.live_speculation import LiveSpeculation
from server.schemas.generation import GenerationRequest
from server.text import TextCodec

PREDICTING = "auto"  # the method that reads predictions, and the default where one is given


class SpeculationResolver:
    """Resolves wishes for one model. Thread-safe: it keeps no state."""

    def __init__(self, tokenizer: TextCodec, info: EngineInfo, live: LiveSpeculation) -> None:
        self._tokenizer = tokenizer
        self._info = info
        self._live = live

    def plan(self, body: GenerationRequest) -> SpeculationPlan:
        """Method and bounds. Raises RequestError for a method or bound that is not to be had here,
        ApiError for a demand of exactness that the engine cannot meet."""
        wish = body.speculation
        if wish.exact and not self._info.is_exact:
            message = (
                f"'speculation.exact' cannot be promised here: {self._info.dtype} on "
                f"{self._info.device} gives bits that depend on what else is computed."
            )
            raise bad_request(message, "speculation.exact", "unsupported_parameter")
        method = wish.method or (PREDICTING if body.prediction else None)
        return self._live.resolve(method, wish.width, wish.depth, wish.budget)

    def prediction(self, body: GenerationRequest) -> tuple[int, ...]:
        """Token ids of the predicted text. Raises ApiError if the method would ignore them or no
        answer could be as long."""
        if body.prediction is None:
            return ()
        method = body.speculation.method or PREDICTING
        if method != PREDICTING:
            message = f"'prediction' needs speculation method '{PREDICTING}', not {method!r:.80}."
            raise bad_request(message, "prediction", "unsupported_parameter")
        try:
            ids = self._tokenizer.encode(body.prediction.content, False)
        except RequestError as error:
            raise bad_request(str(error), "prediction.content") from error
        if len(ids) > self._info.max_model_len:  # it is indexed beside the steps of all requests
            message = (
                f"A prediction may have as many tokens as the model's context, "
                f"{self._info.max_model_len}; this one has {len(ids)}."
            )
            raise bad_request(message, "prediction.content", "context_length_exceeded")
        return tuple(ids)
