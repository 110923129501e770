"""The releases topic as a sink: released rows, each in exactly one committed transaction.

A topic cannot be cut back. What a crash left between publishing and its mark is found by reading the
topic's tail, and those ticks are not published again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.kafka.reading import read_up_to
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions
from evertally.pipelines.releases import Release, StreamHeader

__all__ = ["TopicSink", "published_tick"]

_TAIL_RECORDS: Final = 256
_ROWS_A_TRANSACTION: Final = 4000

Progress = Callable[[], tuple[Mapping[TopicPartition, OffsetText], object]]


class TopicSink:
    """One shard's partition of the releases topic.

    Args:
        broker: the cluster.
        place: the partition.
        header: the stream's public header, published before its first tick.
        transactions: a producer that has fenced every older one of this shard.
        progress: offsets of the closings to commit along, and under which membership.
    """

    def __init__(
        self,
        broker: Broker,
        place: TopicPartition,
        header: StreamHeader,
        transactions: Transactions,
        progress: Progress,
    ) -> None:
        self._place: Final = place
        self._header: Final = header
        self._transactions: Final = transactions
        self._progress: Final = progress
        self._last, self._end = published_tick(broker, place, header.stream, header.incarnation)

    def last_tick(self) -> int:
        """See `Sink`."""
        return self._last

    def rewind(self, mark: int) -> None:
        """See `Sink`: nothing can be cut, but a topic that is shorter than its mark was replaced."""
        if self._end < mark:
            raise IntegrityError(
                f"partition {self._place.partition} of {self._place.topic} ends at {self._end}, the ledger "
                f"has published up to {mark}: the topic was emptied or replaced"
            )

    def append(self, rows: Iterable[bytes]) -> int:
        """See `Sink`: publish whole ticks that are not there yet."""
        pending: list[tuple[int, Outgoing]] = []
        if self._last == 0:
            pending.append(
                (
                    0,
                    Outgoing(
                        self._place.topic, self._place.partition, None, self._header.encode().rstrip(b"\n")
                    ),
                )
            )
        for row in rows:
            release = Release.decode(row)
            if release.t <= self._last:
                continue
            if len(pending) >= _ROWS_A_TRANSACTION and pending[-1][0] < release.t:
                self._publish(pending)
                pending = []
            record = Outgoing(
                self._place.topic, self._place.partition, release.key.encode(), row.rstrip(b"\n")
            )
            pending.append((release.t, record))
        if pending and pending[-1][0]:
            self._publish(pending)
        return self._end

    def _publish(self, pending: list[tuple[int, Outgoing]]) -> None:
        offsets, membership = self._progress()
        sent = self._transactions.run([record for _, record in pending], offsets, membership)
        self._last, self._end = pending[-1][0], sent[-1] + 1


def published_tick(broker: Broker, place: TopicPartition, stream: str, incarnation: int) -> tuple[int, int]:
    """Last tick of an incarnation in a partition of the releases topic (0 for none), and the topic's end.

    The topic is kept for ever, so its tail alone is read: an earlier incarnation publishes nothing once a
    later one has begun to, because its producers are fenced.

    Raises IntegrityError for a record that is no release, and for one of a later incarnation: the ledger,
    which does not know that, was rolled back.
    """
    reader = broker.reader()
    try:
        with translated():
            reader.assign([place])
            first: int = reader.beginning_offsets([place])[place]
            end: int = reader.end_offsets([place])[place]
            window = _TAIL_RECORDS
            while True:
                low = max(first, end - window)
                ticks = _last_ticks(reader, place, low, end, stream)
                if max(ticks, default=0) > incarnation:
                    raise IntegrityError(
                        f"incarnation {max(ticks)} of {stream} is published, the ledger knows {incarnation}: "
                        "an older ledger was put back"
                    )
                if ticks or low == first:
                    return ticks.get(incarnation, 0), end
                window *= 8
    finally:
        reader.close(autocommit=False)


def _last_ticks(reader: Any, place: TopicPartition, low: int, end: int, stream: str) -> dict[int, int]:
    """Last tick of each incarnation of the stream from offset `low` on."""
    reader.seek(place, low)
    last: dict[int, int] = {}
    for records, _ in read_up_to(reader, place, end):
        for record in records:
            if record.key is None:
                continue  # a header
            try:
                release = Release.decode(record.value or b"")
            except InvalidParameter:
                raise IntegrityError(f"{place.topic} holds records that are no releases") from None
            if release.stream == stream:
                if type(release.t) is not int or type(release.incarnation) is not int:
                    raise IntegrityError(f"{place.topic} holds records that are no releases")
                last[release.incarnation] = max(last.get(release.incarnation, 0), release.t)
    return last
