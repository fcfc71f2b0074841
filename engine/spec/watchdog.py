"""The last guard: speculation that loses against plain decoding pays a higher price for a while.

The budget cannot lose by its own reckoning. This compares what it reckoned with what came out.
"""

_WINDOW = 64  # steps
_LEAST = 0.98  # of plain decoding
_RAISE = 1.5
_HIGHEST = 100.0
_EASE = 0.7  # of what the factor is above 1, after a window without loss


class Watchdog:
    """Compares realised tokens per second with plain decoding's, window by window.

    `factor` >= 1 multiplies the price of a node. Plain decoding's speed is what the cost table says
    of steps without drafts.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._begin()

    def _begin(self) -> None:
        self._steps = self._nodes = 0
        self._tokens = self._seconds = 0.0
        self._plain_tokens = self._plain_seconds = 0.0

    def observe(
        self, tokens: int, seconds: float, plain_tokens: int, plain_seconds: float, nodes: int
    ) -> None:
        """One step: what it gave and took, what a plain one would have, and its drafted nodes."""
        self._steps += 1
        self._nodes += nodes
        self._tokens += tokens
        self._seconds += seconds
        self._plain_tokens += plain_tokens
        self._plain_seconds += plain_seconds
        if self._steps < _WINDOW:
            return
        realised = self._tokens * self._plain_seconds
        plain = self._plain_tokens * self._seconds
        if self._nodes and realised < _LEAST * plain:
            self.factor = min(_HIGHEST, self.factor * _RAISE)
        else:
            self.factor = 1.0 + (self.factor - 1.0) * _EASE
        self._begin()
