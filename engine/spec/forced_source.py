"""What a grammar leaves no choice about, as a source of `auto`: keys, quotes and brackets.

A copy of the grammar's state follows each drafted path, so that what is forced is known behind
drafted tokens too. The tokens are the tokenizer's own spelling of the forced bytes; the target may
spell them otherwise, so they are calibrated like any other guess.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from engine.spec.token_source import NUM_SILENT, Proposal

_PRIORS = (0.7, 0.8, 0.9)  # of the first forced token, the second, and those behind them


class GrammarPath(Protocol):
    """Where a text stands in its grammar."""

    def fork(self) -> "GrammarPath":
        """A copy that moves apart from this one."""
        ...

    def follow(self, token_ids: Sequence[int]) -> bool:
        """Move on; false if the grammar does not allow all of them."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, none where there is a choice."""
        ...


# A place, what is forced there, and how much of that the path holds; None: not in the grammar.
State: TypeAlias = tuple[GrammarPath, Sequence[int], int] | None


class ForcedSource:
    """Proposes the next forced token. Feature: how many forced ones the path holds before it."""

    priors: Sequence[float] = (*(0.0,) * NUM_SILENT, *_PRIORS)

    def __init__(self, grammar: GrammarPath) -> None:
        """`grammar`: where the committed text stands, live. It is never moved."""
        self._grammar = grammar

    def anchor(self) -> State:
        """Where the committed text stands now."""
        here = self._grammar.fork()
        return here, here.forced(), 0

    def advance(self, state: State, token: int) -> State:
        """One token on: along what is forced, or by a copy that takes it."""
        if state is None:
            return None
        place, forced, held = state
        if forced[held : held + 1] == [token]:
            return place, forced, held + 1
        ahead = place.fork()
        if not ahead.follow([*forced[:held], token]):
            return None
        return ahead, ahead.forced(), 0

    def propose(self, state: State) -> Proposal:
        """The one token that may come, if there is no choice."""
        if state is None:
            return 1, []
        _, forced, held = state
        if held >= len(forced):
            return 2, []
        return 3, [(forced[held], NUM_SILENT + min(held, len(_PRIORS) - 1))]
