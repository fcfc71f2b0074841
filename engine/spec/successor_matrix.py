"""Token Recycling's memory: for each token, the target's best successors when it last met it.

An array over the vocabulary instead of a dictionary, so that a whole pass is one assignment.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_UNSEEN = -1


class SuccessorMatrix:
    """`width` successors per token id, best first. Grows to the largest id it has met."""

    def __init__(self, width: int) -> None:
        self._rows: npt.NDArray[np.int32] = np.full((0, width), _UNSEEN, np.int32)

    def __len__(self) -> int:
        """Rows: at most twice the largest token id met."""
        return len(self._rows)

    def write(self, tokens: Sequence[int], successors: npt.NDArray[np.int64]) -> None:
        """Overwrite the rows of `tokens`; of a token that comes twice, the last row stays."""
        size, width = self._rows.shape
        if max(tokens) >= size:
            grown = np.full((max(2 * size, max(tokens) + 1), width), _UNSEEN, np.int32)
            grown[:size] = self._rows
            self._rows = grown
        self._rows[tokens] = successors[:, :width]

    def read(self, token: int) -> list[int]:
        """The successors of `token`; empty if it was never seen."""
        if token >= len(self._rows) or self._rows[token, 0] == _UNSEEN:
            return []
        successors: list[int] = self._rows[token].tolist()
        return successors
