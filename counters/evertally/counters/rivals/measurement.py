"""What a mechanism costs when it runs: time a tick and memory held, measured."""

from __future__ import annotations

import time
import tracemalloc
from collections import deque
from dataclasses import dataclass
from itertools import islice

from evertally.counters.factorization import NoiseSource
from evertally.counters.rivals.protocol import Rival
from evertally.validation import positive_integer

__all__ = ["Cost", "measure_cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured cost of one stream of one key.

    Attributes:
        ticks: ticks that were run.
        tick_ns: mean wall time a tick in nanoseconds, drawing the noise included.
        held_bytes: memory allocated by the mechanism that is still held after the last tick.
    """

    ticks: int
    tick_ns: float
    held_bytes: int


def measure_cost(rival: Rival, source: NoiseSource, ticks: int) -> Cost:
    """Run a stream of `ticks` ticks three times: to warm up, for time, and with allocations traced."""
    positive_integer("ticks", ticks, high=rival.horizon)
    _drain(rival, source, ticks)  # compiled loops and cached coefficients are not part of a tick
    start = time.perf_counter_ns()
    _drain(rival, source, ticks)
    tick_ns = (time.perf_counter_ns() - start) / ticks
    tracemalloc.start()
    try:
        before, _peak = tracemalloc.get_traced_memory()
        running = rival.noise(source)
        deque(islice(running, ticks), maxlen=0)
        after, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Cost(ticks=ticks, tick_ns=tick_ns, held_bytes=max(0, after - before))


def _drain(rival: Rival, source: NoiseSource, ticks: int) -> None:
    deque(islice(rival.noise(source), ticks), maxlen=0)
