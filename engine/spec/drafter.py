"""The one protocol of all drafters, and the data that passes through it.

A drafter serves one request. It proposes a token tree below the anchor before each forward pass and
sees afterwards what the target model said at every row, rejected ones included. It can never
change which tokens are emitted; a wrong tree costs time only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from engine.spec.tree import TokenTree

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Hard bounds of one step's tree.

    `depth` bounds VERIFY nodes and shrinks to what may still be emitted; `explore_depth` bounds
    EXPLORE nodes and shrinks to the context's end; `budget` counts all nodes but the anchor.
    """

    width: int
    depth: int
    explore_depth: int
    budget: int


@dataclass(frozen=True, slots=True)
class Needs:
    """Which of the target's outputs a drafter reads. Rows that nobody reads are not computed."""

    top_k: int = 0  # best token ids per row, by raw logits; 0: none
    prompt_rows: bool = False  # rows of the prompt too


@dataclass(frozen=True, slots=True)
class Rows:
    """What the target said at some rows, as raw logits: no sampling rule applied."""

    token_ids: npt.NDArray[np.int64]  # [num_rows, top_k], best first
    logits: npt.NDArray[np.float32]  # [num_rows, top_k]
    whole: "Rows | None" = None  # the pass's rows, if these are some of them
    first: int = 0  # where they begin among those
    _made: dict[Callable[["Rows"], Any], Any] = field(default_factory=dict)

    def part(self, begin: int, end: int) -> "Rows":
        """The rows `begin` .. `end - 1`."""
        whole, first = (self, begin) if self.whole is None else (self.whole, self.first + begin)
        return Rows(self.token_ids[begin:end], self.logits[begin:end], whole, first)

    def shared(self, make: Callable[["Rows"], Made]) -> Made:
        """What `make` makes of the pass's rows: made once, whoever asks. See `first`."""
        whole = self if self.whole is None else self.whole
        if make not in whole._made:
            whole._made[make] = make(whole)
        made: Made = whole._made[make]
        return made


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of one verified tree."""

    tree: TokenTree  # as drafted, node 0 = anchor
    rows: Rows  # one per node of `tree`, same order
    path: Sequence[int]  # accepted node indices, in order; may be empty
    new_token_ids: Sequence[int]  # committed tokens: the path's, then the bonus token


class Drafter(Protocol):
    """Proposes trees for one request."""

    @property
    def needs(self) -> Needs:
        """What `observe` and `observe_prompt` read."""
        ...

    def begin(self, token_ids: Sequence[int]) -> None:
        """Start a request. `token_ids` is its live token list: the prompt now, longer after each
        step by exactly the committed tokens. Read only."""
        ...

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Rows of prompt positions `start` .. `start + num_rows - 1` (if `needs.prompt_rows`).
        The last prompt token is not among them: it is the anchor of the first drafted tree."""
        ...

    def draft(self, limits: DraftLimits) -> TokenTree:
        """The tree to verify next, anchored at the last token of the live list."""
        ...

    def observe(self, result: StepResult) -> None:
        """Learn from one step. The live token list already holds `new_token_ids`."""
        ...

    def state_size(self) -> int:
        """Entries (tokens, n-grams, rows or nodes) that the drafter keeps for its request and no
        other, in constant time. Bounded by the method's configuration and the longest context."""
        ...
