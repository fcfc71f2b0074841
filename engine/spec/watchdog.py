"""The last guard: speculation that loses against plain decoding rests for a while, and costs more.

The budget cannot lose by its own reckoning. This compares what it reckoned with what came out,
drafting and learning included, which take their time even where no node is worth its row. A rest is
for the company that lost: with half as many requests it is over.
"""

_WINDOW = 64  # plain tokens: steps of one request
_LEAST_STEPS = 8  # of any number of requests
_LEAST = 0.98  # of plain decoding; below all of it only a few windows in a row count as a loss
_PATIENCE = 3
_RAISE = 1.5
_HIGHEST = 100.0
_EASE = 0.7  # of what the factor is above 1, after a window without loss
REST, LONGEST_REST = 64, 4096  # steps; after a rest that was not enough the next is longer
_LONGER = 4


class Watchdog:
    """Compares realised tokens per second with plain decoding's, window by window.

    `factor` >= 1 multiplies the price of a node. Plain decoding's speed is what plain steps take;
    the planner makes some for that.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._rest = REST
        self._rest_left = 0
        self._losses = 0  # windows in a row
        self._company = 0  # requests that the last rest was begun with
        self._begin()

    @property
    def is_resting(self) -> bool:
        """Whether the next step should draft and learn nothing."""
        return self._rest_left > 0

    def meet(self, num_requests: int) -> None:
        """So many requests share the next step."""
        if self._rest_left and 2 * num_requests <= self._company:
            self.factor = 1.0
            self._rest, self._rest_left = REST, 0

    def _begin(self) -> None:
        self._steps = self._nodes = 0
        self._tokens = self._seconds = 0.0
        self._plain_tokens = self._plain_seconds = 0.0

    def pass_by(self) -> None:
        """One plain step, or one that says nothing."""
        self._rest_left = max(0, self._rest_left - 1)

    def observe(
        self, tokens: int, seconds: float, plain_tokens: int, plain_seconds: float, nodes: int
    ) -> None:
        """One step that was not plain: what it gave and took, what a plain one would have, and its
        drafted nodes."""
        self._steps += 1
        self._nodes += nodes
        self._tokens += tokens
        self._seconds += seconds
        self._plain_tokens += plain_tokens
        self._plain_seconds += plain_seconds
        if self._steps < _LEAST_STEPS or self._plain_tokens < _WINDOW:
            return
        speed = self._tokens * self._plain_seconds / (self._plain_tokens * self._seconds)
        self._losses = self._losses + 1 if speed < 1.0 else 0
        if speed < _LEAST or self._losses >= _PATIENCE:
            self._losses = 0
            if self._nodes:
                self.factor = min(_HIGHEST, self.factor * _RAISE)
            self._rest_left, self._company = self._rest, plain_tokens
            self._rest = min(_LONGER * self._rest, LONGEST_REST)
        else:
            self.factor = 1.0 + (self.factor - 1.0) * _EASE
            self._rest = REST
        self._begin()
