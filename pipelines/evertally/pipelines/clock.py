"""The clock seam: time comes from one object, so that tests can set it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["AnchoredClock", "Clock"]


class Clock(Protocol):
    """A source of time that never runs backwards."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        ...

    def wall_step_ms(self) -> int:
        """How far the machine's wall clock has been stepped since this clock was made."""
        ...


class AnchoredClock:
    """Wall time read once at construction, carried on by the monotonic clock.

    Setting the machine's clock moves no tick; `wall_step_ms` shows that it was set.
    """

    def __init__(self) -> None:
        self._wall_ns = time.time_ns()
        self._monotonic_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Epoch milliseconds; steps of the wall clock after construction are not followed."""
        return (self._wall_ns + time.monotonic_ns() - self._monotonic_ns) // 1_000_000

    def wall_step_ms(self) -> int:
        """Wall clock minus this clock, milliseconds."""
        return time.time_ns() // 1_000_000 - self.now_ms()
