"""Labelled events of a Kafka topic, frozen to a range of offsets a partition, read without a group."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable
from evertally.pipelines.dead_letters import DeadLetterFile, Reason
from evertally.pipelines.json_values import decode_json
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.training.examples import ExampleBlock, ExampleForm, Range

__all__ = ["KafkaExamples"]

_METADATA_S: Final = 30.0
_POLL_MS: Final = 500


class KafkaExamples:
    """Examples of one topic, one JSON object a record; committed transactions only.

    Args:
        broker: how to reach the cluster.
        topic: the topic; only read.
        form: the declared form.
        refused: the operators' list of records that are no examples.
        stall_s: records are missing and nothing comes: ServiceUnavailable.
    """

    def __init__(
        self, broker: Broker, topic: str, form: ExampleForm, refused: Path, *, stall_s: float = 60.0
    ) -> None:
        self._broker: Final = broker
        self._topic: Final = topic
        self._form: Final = form
        self._refused: Final = refused
        self._stall_s: Final = stall_s

    def freeze(self) -> tuple[Range, ...]:
        """See `ExampleSource`: from what the topic still holds to its last stable offset, now."""
        with translated():
            consumer = self._broker.reader()
            try:
                partitions = self._partitions(consumer)
                starts = consumer.beginning_offsets(partitions)
                ends = consumer.end_offsets(partitions)
            finally:
                consumer.close()
        bounds = [Range(self._part(tp), starts[tp], ends[tp], 0, "") for tp in partitions]
        read = _Reading()
        for _ in self._records(tuple(bounds), read):
            pass
        return tuple(
            Range(frozen.part, frozen.start, frozen.end, *read.result(frozen.part)) for frozen in bounds
        )

    def read(self, ranges: tuple[Range, ...]) -> Iterator[ExampleBlock]:
        """See `ExampleSource`."""
        read = _Reading()
        with DeadLetterFile(self._refused) as refused:
            for part, records in self._records(ranges, read):
                block = self._examples(part, records, refused.write)
                if block is not None:
                    yield block
        for frozen in ranges:
            if read.result(frozen.part) != (frozen.records, frozen.digest):
                raise IntegrityError(
                    f"{frozen.part} holds other records than those this run has paid for (retention, "
                    "compaction or delete-records); training on another set is refused"
                )

    def describe(self) -> dict[str, object]:
        """See `ExampleSource`."""
        return {"format": "kafka", "topic": self._topic}

    def _partitions(self, consumer: Any) -> list[TopicPartition]:
        deadline = time.monotonic() + _METADATA_S
        while not (found := consumer.partitions_for_topic(self._topic)):
            if time.monotonic() > deadline:
                raise InvalidParameter("kafka.topic", self._topic, "an existing topic")
            time.sleep(0.1)
        return [TopicPartition(self._topic, number) for number in sorted(found)]

    def _records(self, ranges: tuple[Range, ...], read: _Reading) -> Iterator[tuple[int, list[Any]]]:
        """Partition and records, batch by batch, up to each range's end."""
        wanted = {TopicPartition(self._topic, self._number(r.part)): r for r in ranges if r.start < r.end}
        if not wanted:
            return
        with translated():
            consumer = self._broker.reader()
        try:
            with translated():
                consumer.assign(list(wanted))
                for tp, frozen in wanted.items():
                    if consumer.beginning_offsets([tp])[tp] > frozen.start:
                        raise IntegrityError(f"{frozen.part} no longer holds its first frozen records")
                    consumer.seek(tp, frozen.start)
            last = time.monotonic()
            while wanted:
                with translated():
                    batches = consumer.poll(timeout_ms=_POLL_MS)
                for tp, batch in batches.items():
                    last = time.monotonic()
                    if tp in wanted:
                        records = [record for record in batch if record.offset < wanted[tp].end]
                        read.add(self._part(tp), records)
                        yield tp.partition, records
                with translated():  # a position also passes the markers that transactions leave
                    done = [tp for tp, frozen in wanted.items() if consumer.position(tp) >= frozen.end]
                for tp in done:
                    consumer.pause(tp)
                    del wanted[tp]
                if wanted and time.monotonic() - last > self._stall_s:
                    raise ServiceUnavailable(f"{self._topic} gave no records for {self._stall_s:.0f} s")
        finally:
            consumer.close()

    def _examples(
        self, partition: int, records: list[Any], refuse: Callable[[int, int, Reason], None]
    ) -> ExampleBlock | None:
        features, labels, units, names = [], [], [], []
        decoded = decode_json([record.value for record in records]) if records else []
        for record, item in zip(records, decoded, strict=True):
            read = item if isinstance(item, Reason) else self._form.read(item)
            if isinstance(read, Reason):
                refuse(partition, record.offset, read)
                continue
            name = b"%d:%d" % (partition, record.offset)
            features.append(read[0])
            labels.append(read[1])
            units.append(read[2] if self._form.unit else name)
            names.append(name)
        if not names:
            return None
        return ExampleBlock(np.stack(features), np.array(labels).astype(self._form.label_type), units, names)

    def _part(self, tp: TopicPartition) -> str:
        return f"{self._topic}/{tp.partition}"

    def _number(self, part: str) -> int:
        topic, _, number = part.rpartition("/")
        if topic != self._topic or not (number.isascii() and number.isdigit()):
            raise IntegrityError(f"the manifest freezes {part}, not a partition of {self._topic}")
        return int(number)


class _Reading:
    """Count and digest of what was read of each part."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, Any]] = {}

    def add(self, part: str, records: list[Any]) -> None:
        count, digest = self._found.get(part) or (0, hashlib.sha256())
        for record in records:
            value = record.value
            size = -1 if value is None else len(value)
            digest.update(b"%d,%d," % (record.offset, size))
            digest.update(value or b"")
        self._found[part] = (count + len(records), digest)

    def result(self, part: str) -> tuple[int, str]:
        count, digest = self._found.get(part) or (0, hashlib.sha256())
        return count, digest.hexdigest()
