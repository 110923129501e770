"""A clock that stands still until a test moves it."""

from __future__ import annotations

from evertally.validation import integer

__all__ = ["FakeClock"]


class FakeClock:
    """Satisfies `evertally.pipelines.clock.Clock`.

    >>> clock = FakeClock(1_000)
    >>> clock.advance(250)
    >>> clock.now_ms(), clock.wall_step_ms()
    (1250, 0)
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = integer("now_ms", now_ms)
        self._wall_step_ms = 0

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return self._now_ms

    def wall_step_ms(self) -> int:
        """What `step_wall` has added up to."""
        return self._wall_step_ms

    def advance(self, ms: int) -> None:
        """Let time pass; it never runs backwards."""
        self._now_ms += integer("ms", ms, low=0)

    def step_wall(self, ms: int) -> None:
        """Set the machine's wall clock forward or back; this clock only notices it."""
        self._wall_step_ms += integer("ms", ms)
