"""From a validated body to the engine's sampling parameters: the fields that map one to one."""

import hashlib
import secrets

from engine.api import SamplingParams, TextRules
from server.errors import bad_request
from server.schemas.generation import GenerationRequest


def choice_seed(seed: int | None, choice: int) -> int:
    """The seed of one of n choices: fresh entropy when the request has none, its own for the first,
    and a value derived from it for the others, so that they differ and can be asked for again."""
    if seed is None:
        return secrets.randbits(63)
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sampling_params(
    body: GenerationRequest, max_tokens: int, seed: int, text: TextRules
) -> SamplingParams:
    """The rules of one choice. Raises ApiError for `min_tokens` above what it may have."""
    if body.min_tokens > max_tokens:
        message = f"it exceeds the {max_tokens} tokens that the completion may have."
        raise bad_request(f"Invalid 'min_tokens': {message}", "min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        min_tokens=body.min_tokens,
        stop=body.stop,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        text=text,
    )
