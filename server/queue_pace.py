"""How soon a full queue has room again, by how fast it has emptied of late.

A client that is told to come back in a second while a minute's work waits only adds to the crowd.
"""

import math

MOST_SECONDS = 60  # clients of OpenAI's SDK ignore a longer wait
_HORIZON = 30.0  # seconds after which what left the queue counts for 1 / e


class QueuePace:
    """Learns how much leaves a queue per second; the unit is the caller's. Begins with an empty
    queue: idle time says nothing about speed."""

    def __init__(self, now: float) -> None:
        """`now`, here and below: seconds of one clock."""
        self._begin = self._last = now
        self._amount = 0.0  # what has left, faded
        self._is_new = True

    def leave(self, amount: float, now: float) -> None:
        """So much has left the queue."""
        self._fade(now)
        self._amount += amount
        self._is_new = False

    def seconds_for(self, amount: float, now: float) -> int:
        """Whole seconds after which `amount` will have left, 1 to MOST_SECONDS; 1 while nothing is
        known, MOST_SECONDS if nothing leaves any more."""
        if self._is_new:
            return 1
        self._fade(now)
        watched = _HORIZON * -math.expm1(-(now - self._begin) / _HORIZON)
        seconds = amount * watched / max(self._amount, 1e-9)
        return max(1, min(MOST_SECONDS, math.ceil(seconds)))

    def _fade(self, now: float) -> None:
        self._amount *= math.exp(-(now - self._last) / _HORIZON)
        self._last = now
