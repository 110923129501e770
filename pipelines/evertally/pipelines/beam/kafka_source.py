"""A Kafka topic as a Beam source, in Python alone: a splittable step that reads a partition, tick by tick.

It keeps no offset of its own: a new job goes on where the ledger's last row says, or the last closing. It
is the job's clock as well: each partition says when it has ended a tick, whether events came or not, and its
watermark never passes the beginning of a tick that it has not ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration

from evertally.errors import InvalidParameter
from evertally.pipelines.beam.elements import DEAD_LETTERS, Counting, parts_of, tick_start
from evertally.pipelines.beam.job_clock import job_clock
from evertally.pipelines.beam.partition_place import PartitionPlace, PartitionTracker, PlaceCoder
from evertally.pipelines.beam.partition_reader import partition_reader
from evertally.pipelines.beam.parts import Part
from evertally.pipelines.beam.positions import Cuts
from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.beam.stream_ref import opened
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.kafka.event_batches import EventReader, dead_letter
from evertally.pipelines.kafka.unit_events import unit_numbers

__all__ = ["KafkaInput", "ReadTicks", "cuts_to_keep"]

_POLL_MS: Final = 20
_CALL_S: Final = 0.2
_IDLE_S: Final = 0.05
_TICKS_A_CALL: Final = 256


@dataclass(frozen=True, slots=True)
class KafkaInput:
    """The input; public.

    Attributes:
        broker: the cluster, without a password.
        topic: the events.
        partitions: how many it has.
        group: the consumer group whose committed offsets say where the very first job begins.
    """

    broker: Broker
    topic: str
    partitions: int
    group: str


def cuts_to_keep(counting: Counting) -> int:
    """How many ends of ticks must be kept so that events read ahead of their tick are found again."""
    rule = counting.rule
    if rule.skew_ms is None:
        return 1
    return -(-(rule.lateness_ms + rule.skew_ms) // rule.tick_ms) + 3


class _ReadPartition(beam.DoFn, RestrictionProvider):
    """Partition numbers in; ((destination, tick), sealed part) and dead letters out."""

    def __init__(self, counting: Counting, source: KafkaInput) -> None:
        self._counting = counting
        self._source = source

    # as a provider of restrictions

    def initial_restriction(self, element: int) -> PartitionPlace:
        """Behind the last durable tick; before the first one, where the group was told to begin."""
        return self._behind_the_head(element)

    def create_tracker(self, restriction: PartitionPlace) -> PartitionTracker:
        """See the tracker."""
        return PartitionTracker(restriction)

    def restriction_coder(self) -> PlaceCoder:
        """Sealed."""
        return PlaceCoder(self._counting.stream)

    def restriction_size(self, element: int, restriction: PartitionPlace) -> int:  # noqa: ARG002 - Beam's form
        """A partition is never split, so no size matters."""
        return 1

    # as a step

    def setup(self) -> None:
        """Open the stream and make the reader of values."""
        counting = self._counting
        self._handle = opened(counting.stream)
        self._events = EventReader(
            counting.stream.spec,
            counting.source,
            counting.rule,
            counting.other,
            unit_numbers(self._handle.secret("unit")),
            paid_horizon=self._handle.horizon,
        )
        self._letter_key = self._handle.secret("dead-letter") if counting.hmac else None

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]  # Beam has no types here
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - how Beam declares it
        watermarks: Any = beam.DoFn.WatermarkEstimatorParam(  # noqa: B008
            ManualWatermarkEstimator.default_provider()  # noqa: B008
        ),
    ) -> Iterator[Any]:
        """Read and end ticks for a moment, then leave the rest to a later call."""
        until = time.monotonic() + _CALL_S
        reader = partition_reader(self._source.broker, self._source.topic, element)
        while True:
            place = tracker.current_restriction()
            records = reader.poll(place.offset, _POLL_MS)
            after, outputs = self.step(element, place, records)
            if not tracker.try_claim(after):
                return
            yield from outputs
            watermarks.set_watermark(tick_start(self._counting.rule, after.open_tick))
            if not records or time.monotonic() >= until:
                tracker.defer_remainder(Duration(0 if records else _IDLE_S))
                return

    def step(
        self, partition: int, place: PartitionPlace, records: list[Any]
    ) -> tuple[PartitionPlace, list[Any]]:
        """One step: the place behind it, and what is to be sent.

        Ticks end before the records are looked at: they came after it, and go to ticks that are open now.
        """
        now_ms = job_clock(self._counting.rule.tick_ms).now_ms()
        closed = self._counting.rule.closed_through(now_ms)
        outputs: list[Any] = []
        if closed >= place.open_tick and place.segment() is None:
            if self._handle.head() >= place.open_tick:
                return self._behind_the_head(partition), []  # the runner went back behind what is durable
            through = min(closed, place.open_tick + _TICKS_A_CALL - 1)
            outputs += self._ends(partition, place, through)
            place = place.ended(through)
            if through < closed:
                return place, outputs
        while records:
            place, records = self._read(partition, place, records, now_ms, outputs)
        return place, outputs

    def _ends(self, partition: int, place: PartitionPlace, through: int) -> Iterator[Any]:
        """To every destination: this partition has no more for these ticks, and sent so much."""
        for t in range(place.open_tick, through + 1):
            cut = (place.cut if t == place.open_tick else place.offset, place.offset)
            at = tick_start(self._counting.rule, t)
            for destination in range(self._counting.destinations):
                sent = place.sent.get((t, destination), 0)
                part = Part(t, ends={partition: sent}, cuts={partition: cut})
                yield TimestampedValue(((destination, t), self._handle.sealer.seal(part)), at)

    def _read(
        self, partition: int, place: PartitionPlace, records: list[Any], now_ms: int, outputs: list[Any]
    ) -> tuple[PartitionPlace, list[Any]]:
        """Count records that were read while one tick was open; the place behind them, and the others."""
        segment, rest = place.segment(), []
        open_tick, again = place.open_tick, False
        if segment is not None:
            open_tick, stop = segment
            again = True
            rest = [record for record in records if record.offset >= stop]
            records = records[: len(records) - len(rest)]
            if not records:
                return place.moved(stop, {}), rest
        events, refusals = self._events.read(partition, records, now_ms)
        ticks = np.maximum(self._counting.rule.ticks(events.time_ms), open_tick)
        sent: Counter[tuple[int, int]] = Counter()
        for destination, part in parts_of(self._counting, self._handle, events, ticks):
            if part.t < place.open_tick:
                continue  # read again, and counted in a tick that is released
            sent[part.t, destination] += part.events
            at = tick_start(self._counting.rule, part.t)
            outputs.append(TimestampedValue(((destination, part.t), self._handle.sealer.seal(part)), at))
        if not again:
            payloads = {} if self._letter_key is None else {record.offset: record.value for record in records}
            at = tick_start(self._counting.rule, place.open_tick)
            for refusal in refusals:
                letter = dead_letter(self._source.topic, refusal, payloads.get(refusal[1]), self._letter_key)
                outputs.append(beam.pvalue.TaggedOutput(DEAD_LETTERS, TimestampedValue(letter, at)))
        return place.moved(records[-1].offset + 1, sent), rest

    def _behind_the_head(self, partition: int) -> PartitionPlace:
        through, positions = opened(self._counting.stream).positions()
        if positions:
            cuts = Cuts.decode(positions)
            if len(cuts.stops) != self._source.partitions:
                raise InvalidParameter(
                    "partitions",
                    self._source.partitions,
                    f"the {len(cuts.stops)} that the stream began with: a Beam job takes no added partition",
                )
            return PartitionPlace.behind(through, cuts.stops[partition])
        offset = self._first_offset(partition)
        return PartitionPlace(offset, 1, offset)

    def _first_offset(self, partition: int) -> int:
        reader = with_password(self._source.broker).group_reader(self._source.group)
        try:
            with translated():
                place = TopicPartition(self._source.topic, partition)
                offset = reader.committed(place, timeout_ms=60_000)
        finally:
            reader.close(autocommit=False)
        if offset is None:
            raise InvalidParameter("--from", "nothing", "earliest, latest or a time at the first start")
        return int(offset)


class ReadTicks(beam.PTransform[Any, Any]):
    """PBegin to the parts of ticks and the dead letters of a Kafka topic.

    Guarantees:
        - killed anywhere and started anew, every event counts exactly once
          (tests/beam/test_beam_prism.py::test_killed_and_started_anew).
        - an idle partition holds no tick back (tests/beam/test_kafka_source.py).
    """

    def __init__(self, counting: Counting, source: KafkaInput) -> None:
        super().__init__()
        self._counting = counting
        self._source = source

    def expand(self, begin: Any) -> Any:
        """See the class."""
        return (
            begin
            | "Partitions" >> beam.Create(list(range(self._source.partitions)))
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_ReadPartition(self._counting, self._source)).with_outputs(
                DEAD_LETTERS, main="parts"
            )
        )
