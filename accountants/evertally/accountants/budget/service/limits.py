"""How often one principal may ask: a token bucket each, filled at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["RateLimiter"]


class RateLimiter:
    """A bucket of `burst` requests for each principal, refilled by `rate_per_s` requests a second.

    Buckets belong to authenticated principals, whose number the operator decides, so the map stays small.

    >>> limiter = RateLimiter(rate_per_s=1.0, burst=2, clock=lambda: 0.0)
    >>> [limiter.wait_s("a"), limiter.wait_s("a"), limiter.wait_s("a"), limiter.wait_s("b")]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate: Final = rate_per_s
        self._burst: Final = float(burst)
        self._clock: Final = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, principal: str) -> float:
        """0 where the request may go on (and is counted), else the seconds until one may."""
        now = self._clock()
        level, since = self._buckets.get(principal, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        if level < 1.0:
            self._buckets[principal] = level, now
            return (1.0 - level) / self._rate
        self._buckets[principal] = level - 1.0, now
        return 0.0
