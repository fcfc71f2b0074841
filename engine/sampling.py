"""Drawing the next token: the target model's logits, one request's rules, one uniform number.

The uniform number of a draw is a pure function of (seed, absolute position). It does not depend on
the step, the tree, the batch or any generator's state, which is why speculation on or off, alone or
in company, gives the same text. Rules run only on rows that the walk visits, in the order: grammar,
logit bias, banned ends (min_tokens), repetition, presence and frequency penalties, temperature,
top_k, top_p, min_p.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.text.grammars import Matcher
from engine.types import SamplingParams, TokenLogprob

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """A 64-bit finaliser: every input bit reaches every output bit (Stafford's variant 13)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """The uniform number in [0, 1) that draws the token at `position`."""
    return (mix(mix(seed + 0x9E3779B97F4A7C15) ^ mix(position + 0x632BE59BD9B4E019)) >> 11) / 2**53


def sample(logits: Tensor, params: SamplingParams, u: float) -> int:
    """Invert the distribution function at `u`, tokens in order of falling probability.

    `logits`: [vocab] float32, penalties and bias applied. Only as many tokens are sorted as the
    draw needs; which that is depends on the row alone, so equal rows give equal tokens.
    """
    scaled = (logits - logits.max()).double() / params.temperature
    log_mass = torch.logsumexp(scaled, 0)
    vocab = scaled.shape[0]
    head = min(256, vocab)
    values, ids = torch.topk(scaled, head)
    index = _invert(values, log_mass, params, u, is_whole=head == vocab)
    if index is None:
        tail = scaled.index_fill(0, ids, -torch.inf)  # equal logits must not change places
        tail_values, tail_ids = torch.sort(tail, descending=True, stable=True)
        values = torch.cat((values, tail_values[: vocab - head]))
        ids = torch.cat((ids, tail_ids[: vocab - head]))
        index = _invert(values, log_mass, params, u, is_whole=True)
    assert index is not None
    return int(ids[index])


def _invert(
    values: Tensor, log_mass: Tensor, params: SamplingParams, u: float, *, is_whole: bool
) -> int | None:
    """Rank of the drawn token, or None if it may lie behind the given ranks. `values` fall."""
    if 0 < params.top_k < values.shape[0]:
        values, is_whole = values[: params.top_k], True
    elif 0 < params.top_k == values.shape[0]:
        is_whole = True
    probs = torch.exp(values - log_mass)
    cdf = torch.cumsum(probs, 0)
    if params.top_k > 0 and is_whole:
        probs, cdf = probs / cdf[-1], cdf / cdf[-1]
    kept = values.shape[0]
    if params.top_p < 1.0:
        kept = int((cdf < params.top_p).sum()) + 1
        if kept > values.shape[0] and not is_whole:
            return None
    if params.min_p > 0.0:
        above = int((probs >= params.min_p * probs[0]).sum())
        if above == values.shape[0] < kept and not is_whole:
            return None
        kept = min(kept, above)
    kept = max(1, min(kept, int((values > -torch.inf).sum())))
    is_cut = kept < values.shape[0] or is_whole or params.top_p < 1.0
    total = float(cdf[kept - 1]) if is_cut else 1.0
    rank = int((cdf[:kept] <= u * total).sum())
    if rank < kept:
        return rank
    return kept - 1 if is_cut else None


class Sampler:
    """One request's rules, and the little state that they need.

    Draws happen in the order of the text, so the state follows the path by itself: a node's own
    history is exactly what was observed before its draw.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        end_token_ids: frozenset[int],
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        matcher: Matcher | None = None,
    ) -> None:
        self.params = params
        self._matcher = matcher
        self._end_ids = torch.tensor(sorted(end_token_ids), dtype=torch.long, device=device)
        self._num_output = 0
        self._bias_ids = torch.tensor([i for i, _ in params.logit_bias], dtype=torch.long).to(
            device
        )
        self._bias = torch.tensor([b for _, b in params.logit_bias], dtype=torch.float32).to(device)
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None
        if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            self._counts = torch.zeros(vocab_size, device=device)
        if params.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(list(prompt_token_ids), dtype=torch.long, device=device)] = True
        self._has_rules = bool(
            params.logit_bias
            or params.min_tokens
            or matcher is not None
            or self._counts is not None
            or self._seen is not None
        )
        self.is_argmax = params.is_greedy and not self._has_rules

    def observe(self, token_id: int) -> None:
        """Take note of a token that was committed to the text. Raises GrammarError."""
        self._num_output += 1
        if self._matcher is not None:
            self._matcher.advance(token_id)
        if self._counts is not None:
            self._counts[token_id] += 1.0
        if self._seen is not None:
            self._seen[token_id] = True

    def draw(self, logits: Tensor, position: int) -> int:
        """The token at `position`. `logits`: [vocab], the row before it, left unchanged."""
        logits = self._apply_rules(logits.float()) if self._has_rules else logits.float()
        if self.params.is_greedy:
            return int(torch.argmax(logits))
        return sample(logits, self.params, uniform(self.params.seed, position))

    def _apply_rules(self, logits: Tensor) -> Tensor:
        params, logits = self.params, logits.clone()
        if self._matcher is not None:
            logits[_banned(self._matcher, logits)] = -torch.inf
        if self._bias_ids.numel():
            logits[self._bias_ids] += self._bias
        if self._num_output < params.min_tokens and self._end_ids.numel():
            ended = logits.index_fill(0, self._end_ids, -torch.inf)
            if self._matcher is None or ended.max() > -torch.inf:  # a complete text must end
                logits = ended
        if self._seen is not None:
            penalty = params.repetition_penalty
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(self._seen, penalised, logits)
        if self._counts is not None:
            logits -= params.frequency_penalty * self._counts
            logits -= params.presence_penalty * (self._counts > 0)
        return logits


def _banned(matcher: Matcher, logits: Tensor) -> Tensor:
    """[vocab] bool: the tokens that the grammar does not allow now."""
    bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
    return torch.from_numpy(bits[: logits.shape[0]] == 0).to(logits.device)


def token_logprob(logits: Tensor, token_id: int, num_top: int) -> TokenLogprob:
    """The target's own log-probabilities at one row. `logits`: [vocab], no rule applied."""
    logprobs = torch.log_softmax(logits.float(), 0)
    values, ids = torch.topk(logprobs, min(num_top, logprobs.shape[0]))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token_id, float(logprobs[token_id]), top)
