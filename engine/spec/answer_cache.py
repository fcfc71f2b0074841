"""What other requests were answered, to copy from: off unless a scope is named.

Whoever shares a scope can tell by timing whether a text was answered before. So a scope must never
be wider than those who may know of each other's answers. Prompts never enter.
"""

from collections.abc import Sequence

from engine.spec.adjacency_source import AdjacencySource
from engine.spec.context_trie import GAP, ContextTrie


class AnswerCache:
    """Answers of one scope in two generations; the older one leaves when the younger is full."""

    def __init__(
        self, scope: str, order: int, max_tokens: int, successors: AdjacencySource
    ) -> None:
        """`successors`: what the target said while it answered, for all requests of the scope."""
        self.scope = scope
        self.successors = successors
        self._order = order
        self._max_tokens = max(1, max_tokens // 2)  # of each generation
        self._texts: list[list[int]] = [[], []]  # the younger last
        self._tries = [ContextTrie(text, order) for text in self._texts]

    def __len__(self) -> int:
        """Tokens held."""
        return sum(map(len, self._texts))

    @property
    def tries(self) -> tuple[ContextTrie, ContextTrie]:
        """Both generations, the younger last. They stay readable after they have left."""
        older, younger = self._tries
        return older, younger

    def add(self, answer: Sequence[int]) -> None:
        """Keep one answer."""
        if len(self._texts[1]) + len(answer) + 1 > self._max_tokens and self._texts[1]:
            self._texts = [self._texts[1], []]
            self._tries = [self._tries[1], ContextTrie(self._texts[1], self._order)]
        self._texts[1] += [*answer[: self._max_tokens - 1], GAP]
        self._tries[1].update()
