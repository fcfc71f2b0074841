"""The last guard: speculation that loses against plain decoding rests for a while, and costs more.

The budget cannot lose by its own reckoning. This compares what it reckoned with what came out,
drafting and learning included, which take their time even where no node is worth its row. A rest is
for the company that lost: with half as many requests it is over.

A pass takes a tenth more or less from one moment to the next, whatever is in it. So small losses
are looked for where passes count as long as they take on the whole, and real time is the guard
against a wrong idea of that.
"""

from dataclasses import dataclass

# Steps of one request. Many at once are judged by fewer steps, and more tokens: these times the
# plain tokens are the square of it.
_WINDOW = 64
_LEAST_REAL = 0.95  # of plain decoding's speed
_RAISE = 1.5
_HIGHEST = 100.0
_EASE = 0.7  # of what the factor is above 1, after a window without loss
REST, LONGEST_REST = 64, 4096  # steps; after a rest that was not enough the next is longer
_LONGER = 4


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of a step, and of a plain one in its place."""

    seconds: float
    plain: float


class Watchdog:
    """Compares realised tokens per second with plain decoding's, window by window.

    `factor` >= 1 multiplies the price of a node. Plain decoding's speed is what plain steps take;
    the planner makes some for that.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._rest = REST
        self._rest_left = 0
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
        self._tokens = self._plain_tokens = 0
        self._real, self._smooth = Clock(0.0, 0.0), Clock(0.0, 0.0)

    def pass_by(self) -> None:
        """One plain step, or one that says nothing."""
        self._rest_left = max(0, self._rest_left - 1)

    def observe(
        self, tokens: int, plain_tokens: int, real: Clock, smooth: Clock, nodes: int
    ) -> None:
        """One step that was not plain: what it gave, what a plain one would have given, what both
        take, as measured and with passes that take what they do on the whole, and its nodes."""
        self._steps += 1
        self._nodes += nodes
        self._tokens += tokens
        self._plain_tokens += plain_tokens
        self._real = _sum(self._real, real)
        self._smooth = _sum(self._smooth, smooth)
        if self._steps * self._plain_tokens < _WINDOW**2:
            return
        if self._speed(self._smooth) < 1.0 or self._speed(self._real) < _LEAST_REAL:
            if self._nodes:
                self.factor = min(_HIGHEST, self.factor * _RAISE)
            self._rest_left, self._company = self._rest, plain_tokens
            self._rest = min(_LONGER * self._rest, LONGEST_REST)
        else:
            self.factor = 1.0 + (self.factor - 1.0) * _EASE
            self._rest = REST
        self._begin()

    def _speed(self, clock: Clock) -> float:
        """The window's tokens per second over plain decoding's."""
        return self._tokens * clock.plain / (self._plain_tokens * clock.seconds)


def _sum(a: Clock, b: Clock) -> Clock:
    return Clock(a.seconds + b.seconds, a.plain + b.plain)
