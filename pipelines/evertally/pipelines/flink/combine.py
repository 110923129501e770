"""A batch of Kafka records to one message a lane: events checked, clipped and added up. Stateless.

This is where the events are many; behind it go partial sums, or bare integers at unit level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.events import EventColumns
from evertally.pipelines.flink.messages import ARRIVAL, NO_ROWS, Letter, Message
from evertally.pipelines.flink.parameters import JobParameters
from evertally.pipelines.kafka.event_batches import EventReader, dead_letter
from evertally.pipelines.kafka.unit_events import unit_numbers
from evertally.pipelines.raw_records import Refusal

__all__ = ["BatchCombiner"]

IntArray = NDArray[np.int64]


class _Record(NamedTuple):
    offset: int
    value: bytes | None


class BatchCombiner:
    """Combines batches of records.

    Guarantees:
        - every good event is in exactly one message, and there are never more messages than records
          (tests/flink/test_flink_combine.py).
    """

    def __init__(self, job: JobParameters, keys: AggregationKeys) -> None:
        self._job: Final = job
        self._reader: Final = EventReader(
            job.spec,
            job.source,
            job.rule,
            job.other,
            unit_numbers(keys.unit),
            paid_horizon=job.horizon,
        )
        self._letter_key: Final = keys.dead_letter if job.dead_letter_hmac else None

    def combine(
        self, values: Sequence[bytes | None], partitions: IntArray, offsets: IntArray, now_ms: int
    ) -> list[Message]:
        """Messages of a batch.

        Args:
            values: of the records.
            partitions: where the records stand.
            offsets: and where in those.
            now_ms: the clock.
        """
        parts: list[IntArray] = []
        letters: list[Letter] = []
        for partition in np.unique(partitions).tolist():
            chosen = np.nonzero(partitions == partition)[0]
            records = [_Record(int(offsets[row]), values[row]) for row in chosen.tolist()]
            events, refusals = self._reader.read(partition, records, now_ms)
            letters += self._letters(records, refusals)
            if len(events.keys):
                parts.append(self._rows(events))
        if not parts:
            return [Message(0, letters, NO_ROWS)] if letters else []
        rows = np.concatenate(parts, axis=1)
        if self._job.bound is None:
            return [Message(int(partitions[0]) % self._job.lanes, letters, _summed(rows))]
        lanes = rows[1] % self._job.lanes
        messages = []
        for lane in np.unique(lanes).tolist():
            messages.append(Message(lane, letters, rows[:, lanes == lane]))
            letters = []
        return messages

    def _rows(self, events: EventColumns) -> IntArray:
        """Tick, (unit,) key, value."""
        if self._job.rule.by_arrival:
            ticks = np.full(len(events.keys), ARRIVAL, np.int64)
        else:
            ticks = self._job.rule.ticks(events.time_ms)
        values = np.ones_like(events.keys) if events.values is None else events.values
        columns = [ticks, events.keys, values]
        if self._job.bound is not None:
            assert events.units is not None
            columns.insert(1, events.units)
        return np.stack(columns)

    def _letters(self, records: Sequence[Any], refusals: Sequence[Refusal]) -> list[Letter]:
        payloads = {} if self._letter_key is None else {record.offset: record.value for record in records}
        topic = self._job.topics.events
        return [
            Letter(refusal[0], dead_letter(topic, refusal, payloads.get(refusal[1]), self._letter_key))
            for refusal in refusals
        ]


def _summed(rows: IntArray) -> IntArray:
    """One row a (tick, key). Contributions are below 2^41 each and a batch far below 2^20 of them."""
    order = np.lexsort((rows[1], rows[0]))
    rows = rows[:, order]
    new = np.ones(rows.shape[1], np.bool_)
    new[1:] = (rows[:2, 1:] != rows[:2, :-1]).any(axis=0)
    starts = np.nonzero(new)[0]
    return np.stack((rows[0, starts], rows[1, starts], np.add.reduceat(rows[2], starts)))
