"""Reading a partition of the input from a given offset, over a connection that a worker process keeps."""

from __future__ import annotations

import threading
from typing import Any, Final

from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated

__all__ = ["PartitionReader", "partition_reader"]

_RECORDS: Final = 2000


class PartitionReader:
    """One partition, one consumer without a group; a missing offset is an error, never a guess."""

    def __init__(self, broker: Broker, place: TopicPartition) -> None:
        self._lock: Final = threading.Lock()
        self._place: Final = place
        self._consumer: Any = with_password(broker).reader()
        self._consumer.assign([place])
        self._at = -1

    def poll(self, offset: int, wait_ms: int) -> list[Any]:
        """At most 2,000 records from `offset` on; none where none come within `wait_ms`.

        Raises IntegrityError where records from there on were deleted, ServiceUnavailable where Kafka fails.
        """
        with self._lock, translated():
            if offset != self._at:
                self._consumer.seek(self._place, offset)
            found = self._consumer.poll(timeout_ms=wait_ms, max_records=_RECORDS).get(self._place, [])
            records = [record for record in found if record.offset >= offset]
            self._at = records[-1].offset + 1 if records else offset
            return records

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close(autocommit=False)


def partition_reader(broker: Broker, topic: str, partition: int) -> PartitionReader:
    """The reader of this process for that partition."""
    place = TopicPartition(topic, partition)
    return _READERS.get((broker, topic, partition), lambda: PartitionReader(broker, place))


_READERS: Final[PerProcess[tuple[Broker, str, int], PartitionReader]] = PerProcess()
