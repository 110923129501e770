"""Kafka transactions with one rule: after any failure the producer is thrown away and made anew.

An idempotent producer that met an error may fail for ever after; a new one with the same transactional
id also aborts what the old one left open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from evertally.errors import Fenced, InvalidParameter, ServiceUnavailable
from evertally.pipelines.kafka.broker import Broker, TopicPartition
from evertally.pipelines.kafka.client_internals import abandon, commit_transaction, send_offsets

__all__ = ["OffsetText", "Outgoing", "Transactions"]

_LOG: Final = logging.getLogger(__name__)
_WAIT_S: Final = 20.0  # longer than the transactions live on the broker


class Outgoing(NamedTuple):
    """A record to produce."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class OffsetText(NamedTuple):
    """An offset to commit with the text that travels with it."""

    offset: int
    text: str


class Transactions:
    """A transactional producer that survives its own failures."""

    def __init__(
        self, broker: Broker, transactional_id: str, *, timeout_ms: int, max_request_bytes: int
    ) -> None:
        self._make: Final[Callable[[], Any]] = lambda: broker.producer(
            transactional_id, timeout_ms=timeout_ms, max_request_bytes=max_request_bytes
        )
        self._id: Final = transactional_id
        self._producer: Any = None
        self.largest_bytes: Final = max_request_bytes - 4096

    def begin_epoch(self) -> None:
        """Fence every older producer of this id, and finish or abort what it left open."""
        self._open()

    def run(
        self,
        records: Sequence[Outgoing],
        offsets: Mapping[TopicPartition, OffsetText] | None = None,
        membership: object | None = None,
    ) -> list[int]:
        """Produce records and commit offsets, all or nothing; returns the records' offsets.

        Raises:
            Fenced: another process has this member's place in the group.
            ServiceUnavailable: it failed and nothing of it is visible, or its outcome is unknown:
                call `begin_epoch` and read the committed offsets before going on. A producer that was
                fenced is among these: the broker also does that to a transaction that took too long.
        """
        for record in records:
            size = len(record.key or b"") + len(record.value or b"")
            if size > self.largest_bytes:
                raise InvalidParameter("kafka.max_request_bytes", size, f"records up to {self.largest_bytes}")
        if self._producer is None:
            raise ServiceUnavailable("the outcome of the last transaction is not settled")
        producer = self._producer
        try:
            producer.begin_transaction()
            sent = [producer.send(r.topic, key=r.key, value=r.value, partition=r.partition) for r in records]
            if offsets:
                committed = {tp: OffsetAndMetadata(o.offset, o.text, -1) for tp, o in offsets.items()}
                send_offsets(producer, committed, membership, _WAIT_S)
            commit_transaction(producer, _WAIT_S)
            return [future.get(timeout=0).offset for future in sent]
        except kafka_errors.KafkaError as error:
            self._discard()
            cause = type(error).__name__
            if isinstance(error, kafka_errors.FencedInstanceIdError):
                raise Fenced("another process runs under this worker's kafka.instance") from None
            raise ServiceUnavailable(f"a Kafka transaction failed: {cause}") from None
        except BaseException:
            self._discard()
            raise

    @property
    def broken(self) -> bool:
        """Whether the last transaction failed and its outcome is still to be settled."""
        return self._producer is None

    def close(self) -> None:
        """Stop the producer; an open transaction is aborted by the next one, or by its timeout."""
        self._discard()

    def _open(self) -> None:
        self._discard()
        producer = self._make()
        try:
            producer.init_transactions()
        except kafka_errors.KafkaError as error:
            with contextlib.suppress(Exception):
                abandon(producer)
            raise ServiceUnavailable(f"a Kafka producer could not start: {type(error).__name__}") from None
        self._producer = producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):  # it is gone either way; its transaction is aborted
                abandon(producer)
