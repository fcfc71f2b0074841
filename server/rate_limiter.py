"""How often one client may ask. The `limits` library counts, in this process's memory."""

import math
import time

from limits import RateLimitItem, parse_many
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter


class RateLimiter:
    """Moving windows, one set per client."""

    def __init__(self, rates: str) -> None:
        """`rates`: such as "60/minute" or "10/second; 2000/hour". Raises ValueError."""
        self._items: list[RateLimitItem] = parse_many(rates)
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def seconds_to_wait(self, client: str) -> int | None:
        """None if the client may ask now, which then counts; else whole seconds until it may."""
        for item in self._items:
            if not self._limiter.test(item, client):
                reset = self._limiter.get_window_stats(item, client).reset_time
                return max(1, math.ceil(reset - time.time()))
        for item in self._items:
            self._limiter.hit(item, client)
        return None
