"""What a worker tells its operators: exact counts of events and lags, so never on a public page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from evertally.pipelines.metrics import OperatorMetrics

__all__ = ["WorkerMetrics"]


class WorkerMetrics:
    """The operators' plane of one worker; every metric names the stream.

    Args:
        stream: the stream's name.
    """

    def __init__(self, stream: str) -> None:
        self.operators: Final = OperatorMetrics("worker")
        self._stream: Final = stream
        new = self.operators
        self._events: Final = new.counter("events_read", "Records read from the input.", ("stream",)).labels(
            stream
        )
        self._letters: Final = new.counter(
            "dead_letters", "Records that could not be counted, by code.", ("stream", "code")
        )
        self._failures: Final = new.counter(
            "commit_failures", "Transactions that failed and were begun again.", ("stream", "stage")
        )
        self._lag: Final = new.gauge(
            "lag_records", "Records of owned partitions that are not read yet.", ("stream", "stage")
        )
        self._ledger: Final = new.gauge(
            "ledger_tick", "Last tick in the ledger, as the releaser holds it.", ("stream", "shard")
        )
        self._topic: Final = new.gauge("topic_tick", "Last tick on the releases topic.", ("stream", "shard"))

    def read(self, records: int, codes: Iterable[str]) -> None:
        """Records that were read, and the codes of those that could not be counted."""
        self._events.inc(records)
        for code, count in Counter(codes).items():
            self._letters.labels(self._stream, code).inc(count)

    def commit_failed(self, stage: str) -> None:
        """A transaction failed."""
        self._failures.labels(self._stream, stage).inc()

    def lag(self, stage: str, records: int | None) -> None:
        """What is not read yet; None where it is not known."""
        if records is not None:
            self._lag.labels(self._stream, stage).set(records)

    def released(self, shard: int, ledger_t: int, topic_t: int) -> None:
        """How far the ledger and the topic are."""
        self._ledger.labels(self._stream, str(shard)).set(ledger_t)
        self._topic.labels(self._stream, str(shard)).set(topic_t)
