"""The clock rule: a machine clock that was set stops the closing of ticks until someone confirms it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from evertally.pipelines.clock import AnchoredClock, Clock

__all__ = ["ClockGuard"]

_LEAST_STEP_MS: Final = 60_000


class ClockGuard:
    """Time that runs on with the monotonic clock; a step of the wall clock is seen and never followed.

    A step of more than max(3 ticks, 60 s), forward or back, trips the guard: no tick closes, the worker
    is not ready, until `confirm` anchors the clock anew.
    """

    def __init__(self, tick_ms: int, make: Callable[[], Clock] = AnchoredClock) -> None:
        self.limit_ms: Final = max(3 * tick_ms, _LEAST_STEP_MS)
        self._make: Final = make
        self._lock = threading.Lock()
        self._clock = make()
        self._tripped = False

    def now_ms(self) -> int:
        """Epoch milliseconds; never runs backwards except by `confirm`."""
        return self._clock.now_ms()

    def trusted(self) -> bool:
        """Whether ticks may close."""
        with self._lock:
            self._tripped = self._tripped or abs(self._clock.wall_step_ms()) > self.limit_ms
            return not self._tripped

    def confirm(self) -> None:
        """An operator says that the wall clock is right as it is now."""
        with self._lock:
            self._clock = self._make()
            self._tripped = False
