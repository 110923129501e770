"""ContinualCount and ContinualSum: a PCollection of events in, noisy running totals out, at every tick.

events -> check, clip -> (bound each unit) -> fixed windows of a tick -> one sealed sum for each tick and
shard -> release step with the ledger's compare-and-set, or sealed closings for `evertally release`.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.display import DisplayDataItem

from evertally.errors import InvalidParameter
from evertally.pipelines.beam.aggregation import aggregation_of
from evertally.pipelines.beam.close_parts import CloseParts, checked_parts
from evertally.pipelines.beam.close_ticks import CloseTicks, Closing
from evertally.pipelines.beam.closings_topic import ClosingsTopic
from evertally.pipelines.beam.elements import Counting
from evertally.pipelines.beam.refs import KeyRef, LedgerRef
from evertally.pipelines.beam.release_ticks import ReleaseLive, ReleaseRange, Releasing
from evertally.pipelines.beam.sink_refs import SinkRef
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamRef
from evertally.pipelines.events import ValueRule
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.stream_spec import StreamSpec
from evertally.validation import positive_integer, real

__all__ = ["Closed", "ContinualCount", "ContinualSum", "Counted", "SealedClosings"]

_SECONDS_MAX: Final = 1e9


class Counted(NamedTuple):
    """What the transforms give back.

    Attributes:
        releases: bytes, the JSON line of each key and tick, as `evertally.pipelines.releases.Release` decodes
            it; the same bytes whenever a bundle is computed again.
        dead_letters: bytes, JSON: the code of each event that could not be counted. Operators' plane.
    """

    releases: PCollection[bytes]
    dead_letters: PCollection[bytes]


class Closed(NamedTuple):
    """What the transforms give back in their sealed form.

    Attributes:
        closings: bytes, JSON: the public place of each closing that stands in its topic.
        dead_letters: as in `Counted`.
    """

    closings: PCollection[bytes]
    dead_letters: PCollection[bytes]


class ContinualSum(beam.PTransform[PCollection[Any], Counted]):
    """Noisy running totals of a value, for declared keys, at every tick, for one charge.

    Elements are mappings, rows, or JSON objects as bytes or text. What cannot be counted becomes a dead
    letter. The stream's closing rule decides when ticks end: "file" wants a bounded input and `ticks`, every
    event goes to its own tick, and all ticks are released after the whole input was read; "event-time" takes
    any input, a tick ends by the workers' clock (and not before the input's watermark), and what comes too
    late goes to the first open tick.

    A live input has no offsets in the ledger: what its source delivers again to a job that was started anew,
    without its runner's state, counts again. The bound of a unit other than "event" holds across jobs.

    Args:
        spec: the stream: keys, tick, clip, bounds on a unit, mechanism, scope.
        ledger: where workers find the ledger.
        key: where workers find the key file.
        value_field: the field with the value; numbers, counted in `value_unit`.
        key_field, unit_field, time_field: names of further fields; without `time_field` an event's time is
            its Beam time stamp. `unit_field` is needed unless the scope's unit is "event".
        value_rule: how values become integers; by default whole numbers, clipped to the stream's clip.
        other: the declared key that takes undeclared ones. It and `unit_field` belong to the stream's
            declaration, which takes them over from here.
        ticks: "file": the declared number of ticks. "event-time": nothing, or a PCollection of the numbers of
            ticks that are over, in place of the workers' clock.
        lateness_s, skew_s: "event-time": a tick ends so long after its end; stamps further in the future than
            `skew_s` are dead letters.
        folder: for the state of units, on a disk that outlives the job; needed unless the unit is "event".
        buckets: how many bounding steps share the units.
        sink: where the ledger's rows are published besides the output.
        dead_letter_hmac: whether a dead letter carries a keyed hash of its element.

    Guarantees:
        - each (stream, key, t) has one value, however often a bundle is computed
          (tests/beam/test_beam_counts.py::test_a_bundle_computed_again_gives_the_same_bytes).
        - each event counts in exactly one tick, a late one in the first open tick
          (tests/beam/test_beam_stream.py).
        - no key, password, exact sum or noise stands in the graph or in what the runner keeps between steps
          (tests/beam/test_beam_secrets.py).
    """

    def __init__(
        self,
        spec: StreamSpec,
        ledger: LedgerRef,
        key: KeyRef,
        *,
        value_field: str | None = "value",
        key_field: str = "key",
        unit_field: str | None = None,
        time_field: str | None = None,
        value_rule: ValueRule | None = None,
        other: str | None = None,
        ticks: int | PCollection[int] | None = None,
        lateness_s: float = 0.0,
        skew_s: float | None = 60.0,
        folder: str | None = None,
        buckets: int = 4,
        sink: SinkRef | None = None,
        dead_letter_hmac: bool = False,
    ) -> None:
        super().__init__()
        spec = _declared(spec, unit_field, other)
        by_unit = spec.scope.unit != "event"
        _check(spec, other, ticks, unit_field, folder, by_unit=by_unit)
        rule = TickRule(
            spec.start_ms,
            spec.tick_ms,
            _milliseconds("lateness_s", lateness_s),
            None if skew_s is None else _milliseconds("skew_s", skew_s),
        )
        values = value_rule or ValueRule(Decimal(1), spec.lower, spec.clip)
        if values.lower < spec.lower or values.clip > spec.clip:
            raise InvalidParameter(
                "value_rule",
                f"values in [{values.lower}, {values.clip}]",
                f"values in [{spec.lower}, {spec.clip}], which the stream is charged for",
            )
        source = EventFormat("json", key_field, value_field, unit_field, time_field, None, values)
        declared = ticks if isinstance(ticks, int) else None
        self._stream: Final = StreamRef(spec, ledger, key)
        self._counting: Final = Counting(
            self._stream,
            rule,
            source,
            other,
            declared,
            buckets if by_unit else 0,
            dead_letter_hmac,
        )
        self._ends: Final = None if declared else ticks
        self._folder: Final = folder
        self._sink: Final = sink

    def expand(self, events: PCollection[Any]) -> Counted:
        """See the class. Raises InvalidParameter for accumulating panes."""
        counting = self._counting
        parts, letters = checked_parts(events, counting, self._ends)
        releasing = Releasing(self._stream, counting.rule, counting.buckets or 1, sink=self._sink)
        step = (ReleaseLive if counting.ticks is None else ReleaseRange)(releasing)
        return Counted(parts | "Release" >> CloseParts(counting, step, 1, self._folder), letters)

    def sealed(self, topic: ClosingsTopic, keys: KeyRef | None = None) -> SealedClosings:
        """The same counting without the release step: closings for `evertally release`.

        The stream is opened, and paid for at the first call, on this host. Its workers then see neither the
        ledger nor the key file, only keys of aggregation, which are written beside the key file here.

        Args:
            topic: where the closings go; the releaser's configuration has `kafka.closing_sources = 1`.
            keys: where workers find the keys of aggregation; None for the path they are written to.

        Raises InvalidParameter for the closing rule "file" and for a sink, which is the releaser's.
        """
        counting = self._counting
        if counting.ticks is not None:
            raise InvalidParameter("closing", "file", "event-time where closings go to a releaser")
        if self._sink is not None:
            raise InvalidParameter("sink", "a sink", "none: the releaser publishes")
        stream = aggregation_of(self._stream, topic, keys)
        return SealedClosings(replace(counting, stream=stream), stream, self._ends, self._folder)

    def display_data(self) -> dict[str, DisplayDataItem]:
        """The stream's public parameters."""
        return _display_data(self._stream.spec)


class ContinualCount(ContinualSum):
    """Noisy running counts: as `ContinualSum`, each event counting 1."""

    def __init__(self, spec: StreamSpec, ledger: LedgerRef, key: KeyRef, **options: Any) -> None:
        for refused in ("value_field", "value_rule"):
            if refused in options:
                raise InvalidParameter(refused, options[refused], "ContinualSum, which counts values")
        super().__init__(spec, ledger, key, value_field=None, **options)


class SealedClosings(beam.PTransform[PCollection[Any], Closed]):
    """Events to sealed closings in their topic; made by `ContinualSum.sealed`."""

    def __init__(self, counting: Counting, stream: AggregationRef, ends: Any, folder: str | None) -> None:
        super().__init__()
        self._counting: Final = counting
        self._stream: Final = stream
        self._ends: Final = ends
        self._folder: Final = folder

    def expand(self, events: PCollection[Any]) -> Closed:
        """See the class. Raises InvalidParameter for accumulating panes."""
        counting = self._counting
        parts, letters = checked_parts(events, counting, self._ends)
        step = CloseTicks(Closing(self._stream, counting.rule, counting.buckets or 1))
        return Closed(parts | "Seal" >> CloseParts(counting, step, 1, self._folder), letters)

    def display_data(self) -> dict[str, DisplayDataItem]:
        """The stream's public parameters."""
        return _display_data(self._stream.spec)


def _display_data(spec: StreamSpec) -> dict[str, DisplayDataItem]:
    return {
        "stream": DisplayDataItem(spec.name, label="Stream"),
        "keys": DisplayDataItem(len(spec.keys), label="Declared keys"),
        "tick_s": DisplayDataItem(spec.tick_ms / 1000, label="Tick, seconds"),
        "closing": DisplayDataItem(spec.closing, label="How ticks close"),
        "mechanism": DisplayDataItem(spec.mechanism, label="Mechanism"),
        "scope": DisplayDataItem(spec.scope.name, label="Budget scope"),
        "unit": DisplayDataItem(spec.scope.unit, label="Privacy unit"),
        "mu": DisplayDataItem(spec.grid.mu, label="Gaussian privacy parameter of the whole stream"),
    }


def _declared(spec: StreamSpec, unit_field: str | None, other: str | None) -> StreamSpec:
    """The declaration with what a later job may not change without a new incarnation."""
    for name, given, declared in (
        ("unit_field", unit_field, spec.unit_field),
        ("other", other, spec.other),
    ):
        if declared not in ("", given):
            raise InvalidParameter(name, given, f"{declared!r}, which the stream declares")
    return replace(spec, unit_field=unit_field or "", other=other or "")


def _milliseconds(name: str, seconds: float) -> int:
    return round(real(name, seconds, low=0, high=_SECONDS_MAX) * 1000)


def _check(
    spec: StreamSpec,
    other: str | None,
    ticks: object,
    unit_field: str | None,
    folder: str | None,
    *,
    by_unit: bool,
) -> None:
    if spec.closing not in ("file", "event-time"):
        raise InvalidParameter("closing", spec.closing, "file or event-time; by arrival only from Kafka")
    if (spec.closing == "file") != isinstance(ticks, int):
        raise InvalidParameter(
            "ticks", ticks, "the declared number of ticks where closing is file, only there"
        )
    if isinstance(ticks, int):
        positive_integer("ticks", ticks)
    if spec.closing != "file" and spec.shards != 1:
        raise InvalidParameter("shards", spec.shards, "1 for a live input in Beam")
    if other is not None and other not in spec.keys:
        raise InvalidParameter("other", other, "one of the declared keys")
    if by_unit != (unit_field is not None):
        raise InvalidParameter("unit_field", unit_field, "the unit's field, unless the scope's unit is event")
    if by_unit and folder is None:
        raise InvalidParameter("folder", folder, "a folder for the state of units")
