"""The clock of a worker process: one for all steps in it, anchored at its first use.

A machine clock that is set by more than max(3 ticks, 60 s) ends the job instead of closing ticks: starting
it again is the operator's word that the clock is right.
"""

from __future__ import annotations

import threading
from typing import Final

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.clock_guard import ClockGuard

__all__ = ["JobClock", "job_clock"]


class JobClock:
    """Time for steps that close ticks."""

    def __init__(self, guard: ClockGuard) -> None:
        self._guard: Final = guard

    def now_ms(self) -> int:
        """Epoch milliseconds. Raises ServiceUnavailable where the machine's clock was set."""
        if not self._guard.trusted():
            raise ServiceUnavailable(
                f"the machine's clock was set by more than {self._guard.limit_ms} ms: no tick closes. "
                "Start the job again when the clock is right"
            )
        return self._guard.now_ms()

    def closed_through(self, rule: TickRule) -> int:
        """Last tick that is over. Raises as `now_ms`."""
        return rule.closed_through(self.now_ms())


def job_clock(tick_ms: int) -> JobClock:
    """The clock of this process for ticks of that length."""
    with _LOCK:
        if tick_ms not in _CLOCKS:
            _CLOCKS[tick_ms] = JobClock(ClockGuard(tick_ms))
        return _CLOCKS[tick_ms]


_LOCK: Final = threading.Lock()
_CLOCKS: Final[dict[int, JobClock]] = {}
