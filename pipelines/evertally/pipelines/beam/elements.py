"""Elements of a user's PCollection to checked contributions: a bundle at a time, never raising on data."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from evertally.pipelines.beam.parts import Part
from evertally.pipelines.beam.stream_ref import AggregationRef, Handle, StreamRef, opened
from evertally.pipelines.clock import AnchoredClock, Clock
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.events import EventColumns, EventParser
from evertally.pipelines.json_values import Number, decode_json, numbers, texts
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.kafka.unit_events import unit_numbers
from evertally.pipelines.raw_records import Field, RawBatch, Refusal
from evertally.pipelines.ticks import TickGrid
from evertally.validation import integer

__all__ = ["DEAD_LETTERS", "CheckElements", "Counting", "parts_of", "tick_start"]

DEAD_LETTERS: Final = "dead_letters"
_BATCH: Final = 4096
_BUCKETS_MAX: Final = 1024
_PRINTED_BITS: Final = 4096
"""Python refuses to print integers of more than 4,300 digits; none of so many bits is any event's."""


@dataclass(frozen=True, slots=True)
class Counting:
    """How elements become contributions; public.

    Attributes:
        stream: the stream.
        rule: ticks, lateness, skew.
        source: names of fields, form of values.
        other: the declared key that takes undeclared ones, None to refuse them.
        ticks: declared number of ticks of a bounded input; None for a live one.
        buckets: bounding steps that share the units; 0 at event level.
        hmac: whether a dead letter carries an HMAC of its element.

    Raises InvalidParameter for buckets at event level, and for none where units are to be bounded.
    """

    stream: StreamRef | AggregationRef
    rule: TickRule
    source: EventFormat
    other: str | None
    ticks: int | None
    buckets: int
    hmac: bool = False

    def __post_init__(self) -> None:
        by_unit = self.stream.spec.scope.unit != "event"
        integer("buckets", self.buckets, low=int(by_unit), high=_BUCKETS_MAX if by_unit else 0)

    @property
    def destinations(self) -> int:
        """Steps that the parts go to: bounding steps, or shards."""
        return self.buckets or self.stream.spec.shards


def tick_start(rule: TickRule, t: int) -> Timestamp:
    """Start of tick t as Beam writes times."""
    return Timestamp(micros=(rule.start_ms + (t - 1) * rule.tick_ms) * 1000)


def parts_of(
    counting: Counting, handle: Handle, events: EventColumns, ticks: Any
) -> Iterator[tuple[int, Part]]:
    """(destination, part) for each tick and destination that has contributions; `ticks` is each event's."""
    values = np.ones_like(events.keys) if events.values is None else events.values
    if counting.buckets:
        assert events.units is not None
        place = events.units % counting.buckets
    else:
        place = np.array(handle.shard_of, np.int64)[events.keys]
    for t, destination in sorted(set(zip(ticks.tolist(), place.tolist(), strict=True))):
        chosen = (ticks == t) & (place == destination)
        count = int(chosen.sum())
        if counting.buckets:
            assert events.units is not None
            rows = np.stack((events.units[chosen], events.keys[chosen], values[chosen]))
            yield destination, Part(t, rows=rows, events=count)
        else:
            # contributions are below 2^41 each and a batch below 2^20 of them: int64 holds their sum
            sums = np.zeros(len(handle.spec.keys), np.int64)
            np.add.at(sums, events.keys[chosen], values[chosen])
            found = {int(position): int(sums[position]) for position in np.nonzero(sums)[0]}
            yield destination, Part(t, found, events=count)


class CheckElements(beam.DoFn):
    """Mappings, rows or JSON bytes in; ((destination, tick), sealed part) and dead letters out.

    An event's time is its own field's, or the element's Beam time stamp where no field is named.
    """

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._clock: Clock | None = None
        self._items: list[tuple[Any, Timestamp]] = []

    def setup(self) -> None:
        """Open the stream and make the parser."""
        counting = self._counting
        self._handle = opened(counting.stream)
        spec = counting.stream.spec
        grid = TickGrid(counting.rule.start_ms, counting.rule.tick_ms, counting.ticks or self._handle.horizon)
        self._parser = EventParser(
            grid,
            spec.keys,
            counting.other,
            counting.source.timezone,
            counting.source.rule,
            unit_numbers(self._handle.secret("unit")),
            keep_places=spec.scope.adjacency == "replace-value",
        )
        self._letter_key = self._handle.secret("dead-letter") if counting.hmac else None
        self._clock = AnchoredClock()

    def start_bundle(self) -> None:
        """Begin with nothing."""
        self._items = []

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        """Keep the element until a batch is full."""
        self._items.append((element, timestamp))
        if len(self._items) >= _BATCH:
            for letter, output, at in self._flush():
                stamped = TimestampedValue(output, at)
                yield beam.pvalue.TaggedOutput(DEAD_LETTERS, stamped) if letter else stamped

    def finish_bundle(self) -> Iterator[Any]:
        """Count what is left."""
        for letter, output, at in self._flush():
            windowed = WindowedValue(output, at, (GlobalWindow(),))
            yield beam.pvalue.TaggedOutput(DEAD_LETTERS, windowed) if letter else windowed

    def _flush(self) -> Iterator[tuple[bool, Any, Timestamp]]:
        """(whether it is a dead letter, output, its time stamp) for all kept elements."""
        items, self._items = self._items, []
        if not items:
            return
        events, refusals = self._parse(items)
        ticks = self._counting.rule.ticks(events.time_ms)
        for destination, part in parts_of(self._counting, self._handle, events, ticks):
            keyed = ((destination, part.t), self._handle.sealer.seal(part))
            yield False, keyed, tick_start(self._counting.rule, part.t)
        for row, _, reason in refusals:
            yield True, self._letter(items[row][0], reason), items[row][1]

    def _parse(self, items: list[tuple[Any, Timestamp]]) -> tuple[EventColumns, list[Refusal]]:
        source = self._counting.source
        decoded = [_fields(element) for element, _ in items]
        rows = [row for row, item in enumerate(decoded) if not isinstance(item, Reason)]
        objects: list[Mapping[str, Any]] = [item for item in decoded if not isinstance(item, Reason)]
        refused = [(row, row, item) for row, item in enumerate(decoded) if isinstance(item, Reason)]
        stamps: Sequence[Field] = (
            [str(items[row][1].micros // 1000) for row in rows]
            if source.timestamp is None
            else texts([_plain(item.get(source.timestamp)) for item in objects])
        )
        batch = RawBatch(
            stamps,
            texts([_plain(item.get(source.key)) for item in objects]),
            None if source.value is None else numbers([_plain(item.get(source.value)) for item in objects]),
            None if source.unit is None else texts([_plain(item.get(source.unit)) for item in objects]),
            lambda row: (rows[row], rows[row]),
            refused,
        )
        skew_ms = self._counting.rule.skew_ms
        if skew_ms is None or self._counting.ticks is not None:
            return self._parser.parse(batch)
        assert self._clock is not None
        return self._parser.parse(batch, self._clock.now_ms() + skew_ms)

    def _letter(self, element: Any, reason: Reason) -> bytes:
        fields: dict[str, object] = {"schema": "evertally.dead-letter/1", "code": reason.value}
        if self._letter_key is not None:
            fields["hmac"] = hmac.digest(self._letter_key, _payload(element), "sha256").hex()
        return json.dumps(fields, separators=(",", ":")).encode()

    def __repr__(self) -> str:
        return "CheckElements(<redacted>)"


def _fields(element: Any) -> Mapping[str, Any] | Reason:
    """The fields of an element: a mapping, a named tuple or Row, or a JSON object as bytes or text."""
    if isinstance(element, Mapping):
        return element
    if isinstance(element, bytes | str):
        data = element if isinstance(element, bytes) else element.encode("utf-8", "surrogatepass")
        return decode_json([data])[0]
    as_fields = getattr(element, "_asdict", None)
    return as_fields() if callable(as_fields) else Reason.MALFORMED


def _payload(element: Any) -> bytes:
    """What a dead letter's hash is of."""
    if isinstance(element, bytes):
        return element
    try:
        return repr(element).encode("utf-8", "surrogatepass")
    except Exception:  # an element's own way to show itself may fail, and no element may stop a job
        return type(element).__name__.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    """A field as JSON would have it: times of Beam as milliseconds, other numbers as their text."""
    if type(value) is int and value.bit_length() > _PRINTED_BITS:
        return Number(str(Decimal(value)))
    if isinstance(value, Timestamp):
        return str(value.micros // 1000)
    if isinstance(value, float | Decimal):
        return Number(str(value))
    return value
