"""Prompt lookup decoding: copy what followed the last few tokens before.

The simplest drafter of all and the one to beat wherever the answer quotes the prompt.
"""

from collections.abc import Sequence

from engine.config import PromptLookupConfig
from engine.spec.context_index import ContextIndex
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan


class PromptLookup:
    """A chain after the earliest occurrence of the longest n-gram that has a full continuation.

    A match whose `num_tokens` continuation runs past the text's end does not count: the next
    shorter n-gram is tried. The step's limits cut the chain afterwards.
    """

    def __init__(self, plan: SpeculationPlan, config: PromptLookupConfig) -> None:
        self._plan = plan
        self._config = config
        self.begin(())

    @property
    def needs(self) -> Needs:
        """Nothing: the text is enough."""
        return Needs()

    def begin(self, token_ids: Sequence[int]) -> None:
        """Index a request's live token list."""
        self._tokens = token_ids
        self._index = ContextIndex(token_ids, range(1, self._config.max_ngram + 1))

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing to learn."""

    def observe(self, result: StepResult) -> None:  # noqa: ARG002
        """Index the committed tokens."""
        self._index.update()

    def state_size(self) -> int:
        """N-grams of the text."""
        return len(self._index)

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The anchor and its copied continuation."""
        length = min(limits.depth, limits.budget, self._plan.depth, self._plan.budget)
        return TokenTree.chain([self._tokens[-1], *self._copy()[:length]])

    def _copy(self) -> Sequence[int]:
        for n in range(min(self._config.max_ngram, len(self._tokens)), 0, -1):
            # The earliest occurrence has the longest continuation, so no later one needs a look.
            start = self._index.first(tuple(self._tokens[-n:]))
            if start is not None and start + self._config.num_tokens <= len(self._tokens):
                return self._tokens[start : start + self._config.num_tokens]
        return ()
