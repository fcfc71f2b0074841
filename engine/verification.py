"""One request's verified tree: draw along it, commit what is drawn, count what it was worth."""

from dataclasses import dataclass

from engine.model.run_request import RunResult
from engine.request import Request
from engine.sampling import Sampler, token_logprob
from engine.spec.tree import TokenTree
from engine.spec.walk import Walk, walk
from engine.types import FinishReason, SpecStats, TokenLogprob


@dataclass(frozen=True, slots=True)
class Verified:
    """What a tree gave: the walk, its tokens' log-probabilities if asked, and whether it ended."""

    walk: Walk
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None


def verify(
    request: Request, sampler: Sampler, tree: TokenTree, result: RunResult, vocab_size: int
) -> Verified:
    """Walk `tree` and commit each drawn token to `request`. Raises ArithmeticError at NaN logits.

    Draws happen in the order of the text, so rules with a memory need no undoing.
    """
    if request.is_complete:  # asked for no token at all
        return Verified(Walk([], []), [], FinishReason.LENGTH)
    wanted = request.source.sampling.logprobs
    logprobs: list[TokenLogprob] = []
    reason: FinishReason | None = None

    def draw(node: int) -> int:
        if result.argmax[node] == vocab_size:
            raise ArithmeticError("the model gave NaN logits")
        if sampler.is_argmax:
            token_id = result.argmax[node]
        else:
            token_id = sampler.draw(result.logits[node], len(request.token_ids))
        if wanted is not None:
            logprobs.append(token_logprob(result.logits[node], token_id, wanted))
        return token_id

    def is_final(token_id: int) -> bool:
        nonlocal reason
        sampler.observe(token_id)
        reason = request.commit(token_id)
        return reason is not None

    outcome = walk(tree, draw, is_final)
    return Verified(outcome, logprobs, reason)


def count(tree: TokenTree, outcome: Walk) -> SpecStats:
    """The counters of one step of one request."""
    is_hit, tokens = tree.num_draft_tokens > 0, len(outcome.token_ids)
    return SpecStats(
        steps=1,
        drafts=int(is_hit),
        draft_tokens=tree.num_draft_tokens,
        explored_tokens=tree.num_explored_tokens,
        accepted_tokens=len(outcome.path),
        hit_tokens=tokens if is_hit else 0,
        tokens=tokens,
        accepted_per_depth=(1,) * len(outcome.path),
    )
