"""What a job's process tells its operators: ticks and the clock. It counts no events and opens no key.

Steps may run anywhere, so nothing here comes from them: the figures are read off what is durable.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from evertally.errors import EvertallyError
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.metrics import Listen, OperatorMetrics, PlaneServer, internal_plane
from evertally.pipelines.metrics.standing import ShardHead

__all__ = ["JobMetrics"]

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0


class JobMetrics:
    """The operators' plane of one job; use it as a context, and `begin` when the stream is open.

    Guarantees:
        - its text is a function of ticks and the clock, whatever the events are
          (tests/metrics/test_engine_metrics.py).

    Args:
        stream: the stream's name.
        rule: its ticks.
        listen: where to serve.
        clock: says which ticks are over.
    """

    def __init__(
        self,
        stream: str,
        rule: TickRule,
        listen: Listen,
        clock: ClockGuard | None = None,
    ) -> None:
        self.operators: Final = OperatorMetrics("beam")
        self._stream: Final = stream
        self._rule: Final = rule
        self._clock: Final = clock or ClockGuard(rule.tick_ms)
        new, labels = self.operators, ("stream", "shard")
        self._committed: Final = new.gauge("committed_tick", "Last tick that is durable.", labels)
        self._published: Final = new.gauge("published_tick", "Last tick that is published.", labels)
        self._behind: Final = new.gauge(
            "ticks_behind", "Ticks that are over by the clock and not committed.", ("stream",)
        ).labels(stream)
        self._failures: Final = new.counter(
            "look_failures", "Looks at what is durable that failed.", ("stream",)
        ).labels(stream)
        new.watch(
            "clock_trusted",
            "1 while ticks close by the machine's clock.",
            lambda: float(self._clock.trusted()),
        )
        self._plane: Final[PlaneServer] = internal_plane(listen, self.operators)
        self._stop: Final = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where the plane is served."""
        return self._plane.address

    def __enter__(self) -> Self:
        self._plane.start()
        _LOG.info("the operators' plane listens on %s", self.address)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._plane.close()
        if self._thread is not None:
            self._thread.join(30)

    def begin(self, read: Callable[[], Sequence[ShardHead]]) -> None:
        """Look now, and from now on every second on a thread; `read` says where the shards stand."""
        self.look(read)
        self._thread = threading.Thread(target=self._run, args=(read,), name="job-metrics", daemon=True)
        self._thread.start()

    def look(self, read: Callable[[], Sequence[ShardHead]]) -> None:
        """Look once; where that fails, what was seen last stays."""
        try:
            shards = read()
        except EvertallyError as error:
            self._failures.inc()
            _LOG.warning("a look at the stream's ticks failed: %s", error)
            return
        for shard, head in enumerate(shards):
            self._committed.labels(self._stream, str(shard)).set(head.committed_t)
            self._published.labels(self._stream, str(shard)).set(head.published_t)
        over = self._rule.closed_through(self._clock.now_ms())
        self._behind.set(max(0, over - min((head.committed_t for head in shards), default=0)))

    def _run(self, read: Callable[[], Sequence[ShardHead]]) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look(read)
