"""The protocol of what proposes next tokens to `auto`: a state that follows any drafted path.

A source never sees the verifier. It names tokens and, with each, a small feature code; what such a
code is worth is the calibrator's business.
"""

from collections.abc import Sequence
from typing import Any, Protocol

State = Any  # whatever a source remembers of one path; immutable
Proposal = tuple[int, list[tuple[int, int]]]  # silent code, [(token, code)], tokens distinct

NUM_SILENT = 4  # codes below this one say why a source does not name a token
NUM_CODES = 256


class TokenSource(Protocol):
    """Proposes tokens after a path of one request.

    `priors[code]` is the assumed acceptance of a proposal with that code, before any was seen.
    Codes from NUM_SILENT on belong to proposals. A code below describes the source's situation at
    a node; it stands for the source in the features of tokens that other sources name there.
    """

    priors: Sequence[float]

    def anchor(self) -> State:
        """The state after the last committed token."""
        ...

    def advance(self, state: State, token: int) -> State:
        """The state one token further down a drafted path. Changes nothing."""
        ...

    def propose(self, state: State) -> Proposal:
        """Tokens that may come next."""
        ...
