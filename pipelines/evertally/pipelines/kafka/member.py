"""A member of a consumer group: polls, and tells which partitions came and went in between.

The listener only notes changes; they are handled on the polling thread, between polls, so that no
commit and no change of ownership ever overlap. Records of a partition that has just come are dropped:
its owner first seeks to the position it trusts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka import ConsumerRebalanceListener
from kafka import errors as kafka_errors

from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines.kafka.broker import Broker, Membership, TopicPartition, translated
from evertally.pipelines.kafka.client_internals import is_stable, resume_join

__all__ = ["GroupMember", "Polled"]

_LOG: Final = logging.getLogger(__name__)
_METADATA_S: Final = 30.0
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True, repr=False)
class Polled:
    """What one poll brought.

    Attributes:
        gone: partitions of which everything in memory is to be dropped, before anything else.
        came: partitions that are new and must be positioned with `seek` before the next poll.
        records: partition number to its records, in order of offsets.
    """

    gone: tuple[int, ...]
    came: tuple[int, ...]
    records: dict[int, Sequence[Any]]

    def __repr__(self) -> str:
        return f"Polled(gone={self.gone}, came={self.came}, <redacted>)"


class GroupMember:
    """One topic's partitions, as far as this member owns them."""

    def __init__(self, broker: Broker, membership: Membership, topic: str, *, max_poll_records: int) -> None:
        self._topic: Final = topic
        self._consumer: Final = broker.member(membership, max_poll_records=max_poll_records)
        self._changes = _Changes()
        with translated():  # a leader that does not know the topic yet would assign nothing, and stay so
            deadline = time.monotonic() + _METADATA_S
            while not self._consumer.partitions_for_topic(topic):
                if time.monotonic() > deadline:
                    raise ServiceUnavailable(f"the cluster does not show topic {topic}")
                time.sleep(0.1)
        self._consumer.subscribe([topic], listener=self._changes)

    def poll(self, timeout_ms: int) -> Polled:
        """Records and changes of ownership since the last poll."""
        batches: Mapping[TopicPartition, Sequence[Any]] = {}
        unpositioned = None
        if resume_join(self._consumer):
            _LOG.info("a join of the group was left half done; joining again")
        try:
            batches = self._consumer.poll(timeout_ms=timeout_ms)
        except (kafka_errors.NoOffsetForPartitionError, kafka_errors.OffsetOutOfRangeError) as error:
            unpositioned = error  # of partitions that have just come: their owner positions them
        except kafka_errors.RetriableError:
            time.sleep(_PAUSE_S)  # a broker is away; whoever waits too long for records says so
        except kafka_errors.KafkaError as error:
            with translated():
                raise error
        gone, came = self._changes.take()
        if unpositioned is not None and not came:
            with translated():
                raise unpositioned
        fresh = set(came)
        records: dict[int, Sequence[Any]] = {
            tp.partition: list(batch)
            for tp, batch in batches.items()
            if tp.partition not in fresh and tp.partition not in gone
        }
        return Polled(gone, came, records)

    def owns(self) -> frozenset[int]:
        """Partitions assigned now."""
        return frozenset(tp.partition for tp in self._consumer.assignment())

    def committed(self, partition: int) -> tuple[int, str]:
        """Committed offset and its text; waits for transactions that are still open.

        Raises IntegrityError where the group has none for this partition.
        """
        with translated():
            found = self._consumer.committed(self._tp(partition), metadata=True, timeout_ms=60_000)
        if found is None:
            raise IntegrityError(
                f"partition {partition} of {self._topic} has no committed offset though the stream has "
                "begun; none is guessed"
            )
        return found.offset, found.metadata or ""

    def seek(self, partition: int, offset: int) -> None:
        """Read this partition from here, and forget what was fetched of it.

        Raises IntegrityError where the offset was deleted from the topic, or lies behind its end.
        """
        with translated():
            first = self._consumer.beginning_offsets([self._tp(partition)])[self._tp(partition)]
            self._consumer.seek(self._tp(partition), offset)
        if offset < first:
            raise IntegrityError(
                f"partition {partition} of {self._topic} begins behind records that are still needed: "
                "retention or delete-records removed them; going on would lose events"
            )

    def beginning(self, partition: int) -> int:
        """First offset that the topic still holds."""
        with translated():
            found: int = self._consumer.beginning_offsets([self._tp(partition)])[self._tp(partition)]
        return found

    def lag(self) -> int | None:
        """Records not yet read of the owned partitions as of the last fetch; None before one."""
        total = 0
        for tp in self._consumer.assignment():
            end = self._consumer.highwater(tp)
            if end is None:
                return None
            with translated():
                total += max(0, end - self._consumer.position(tp))
        return total

    def joined(self) -> bool:
        """Whether the group has agreed on who owns what, with this member in it."""
        return is_stable(self._consumer)

    def identity(self) -> object:
        """This member's place in the group; the broker refuses commits under a stale one."""
        return self._consumer.group_metadata()

    def leave(self) -> None:
        """Close. A static member keeps its partitions until its session ends."""
        self._consumer.close(autocommit=False, timeout_ms=3000)

    def partitions(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """As kafka-python names them."""
        return [self._tp(number) for number in numbers]

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


class _Changes(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python ships no types
    """Runs on the consumer's network thread; does nothing but note."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone: set[int] = set()
        self._came: set[int] = set()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._came |= {tp.partition for tp in assigned}

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._drop({tp.partition for tp in revoked})

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._drop({tp.partition for tp in lost})

    def _drop(self, partitions: set[int]) -> None:
        with self._lock:
            self._gone |= partitions
            self._came -= partitions

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        with self._lock:
            changes = tuple(sorted(self._gone)), tuple(sorted(self._came))
            self._gone, self._came = set(), set()
        return changes
