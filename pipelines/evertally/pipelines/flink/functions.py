"""The two functions that run on Flink's workers; what they compute stands in combine, lanes and unit_lanes.

Batches reach the first one as Arrow columns, so that Python is called once a batch and not once an event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd  # type: ignore[import-untyped]  # its stubs are in no lock
from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pyflink.table.udf import FunctionContext, ScalarFunction

from evertally.pipelines.flink.combine import BatchCombiner
from evertally.pipelines.flink.lanes import HEAD, Contributions, LaneHead, OpenSums, assign_ticks, cut_pieces
from evertally.pipelines.flink.messages import Message
from evertally.pipelines.flink.parameters import JobParameters
from evertally.pipelines.flink.unit_lanes import OpenEvents, UnitBuckets
from evertally.pipelines.kafka.aggregation import positions_of
from evertally.pipelines.kafka.clock_guard import ClockGuard

__all__ = ["LETTER", "OUTPUT_ROW", "CloseTicks", "Combine"]

_LOG: Final = logging.getLogger(__name__)
_BYTES: Final = Types.PRIMITIVE_ARRAY(Types.BYTE())
LETTER: Final = -1
"""Stands in a row of the output where a closing has its shard."""
OUTPUT_ROW: Final = Types.ROW_NAMED(["shard", "k", "v"], [Types.INT(), _BYTES, _BYTES])


class Combine(ScalarFunction):  # type: ignore[misc]
    """A batch of records to the messages of a batch, in the first rows; the other rows are null."""

    def __init__(self, job: JobParameters) -> None:
        self._job = job

    def open(self, function_context: FunctionContext) -> None:  # noqa: ARG002 - Flink's signature
        """See ScalarFunction."""
        self._combiner = BatchCombiner(self._job, self._job.open_keys())
        self._clock = ClockGuard(self._job.rule.tick_ms)

    def is_deterministic(self) -> bool:
        """It reads the clock: the planner calls it once a batch, not once for each use of its result."""
        return False

    def eval(self, values: pd.Series, partitions: pd.Series, offsets: pd.Series) -> pd.Series:
        """The messages."""
        messages = self._combiner.combine(
            values.tolist(), partitions.to_numpy(), offsets.to_numpy(), self._clock.now_ms()
        )
        encoded: list[bytes | None] = [message.encode() for message in messages]
        return pd.Series(encoded + [None] * (len(values) - len(encoded)), dtype=object)


class CloseTicks(KeyedProcessFunction):  # type: ignore[misc]
    """One lane a key: messages in, sealed closings out when the clock says so, dead letters at once."""

    def __init__(self, job: JobParameters) -> None:
        self._job = job

    def open(self, runtime_context: RuntimeContext) -> None:
        """See KeyedProcessFunction."""
        job = self._job
        keys = job.open_keys()
        self._clock = ClockGuard(job.rule.tick_ms)
        self._closings = job.closings_sealer(keys)
        self._sealer = job.state_sealer(keys)
        self._positions = positions_of(job.shard_of, job.spec.shards)
        self._head = runtime_context.get_state(ValueStateDescriptor("head", _BYTES))
        self._open: Contributions
        if job.bound is None:
            sums = runtime_context.get_state(ValueStateDescriptor("sums", _BYTES))
            self._open = OpenSums(sums, self._sealer, len(job.spec.keys))
        else:
            events = runtime_context.get_list_state(ListStateDescriptor("events", _BYTES))
            table = runtime_context.get_map_state(MapStateDescriptor("units", Types.INT(), _BYTES))
            units = UnitBuckets(table, self._sealer, job.lanes)
            self._open = OpenEvents(events, units, self._sealer, job.bound)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Any]:
        """A message of a batch; an empty one makes the lane known."""
        message = Message.decode(value[0])
        head = self._begun(message.lane, ctx)
        if message.rows.shape[1]:
            rows = assign_ticks(message.rows, self._job.rule, head, self._clock.now_ms())
            self._open.add(message.lane, rows)
        for letter in message.letters:
            yield Row(LETTER, str(letter.partition).encode(), letter.body)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:  # noqa: ARG002 - Flink's signature
        """Close what is over."""
        lane = ctx.get_current_key()
        head = self._begun(lane, ctx)
        through = self._job.rule.closed_through(self._clock.now_ms())
        if not self._clock.trusted():
            _LOG.error("the machine's clock was set: no tick closes until the job is started again")
        elif through >= head.open_tick:
            totals = self._open.close(lane, through)
            pieces, after = cut_pieces(
                self._job.life, self._job.incarnation, lane, head, through, totals, self._positions
            )
            self._store(lane, after)
            for shard, piece in pieces:
                yield Row(shard, *self._closings.seal(piece, shard))
        self._wait(ctx)

    def _begun(self, lane: int, ctx: Any) -> LaneHead:
        sealed = self._head.value()
        if sealed is not None:
            return LaneHead.decode(self._sealer.open(sealed, lane, HEAD))
        head = LaneHead(1, 0)
        self._store(lane, head)
        self._wait(ctx)
        return head

    def _store(self, lane: int, head: LaneHead) -> None:
        self._head.update(self._sealer.seal(head.encode(), lane, HEAD))

    def _wait(self, ctx: Any) -> None:
        """Ask to be called when the next tick is over; the engine's clock only wakes, ours decides."""
        now_ms = self._clock.now_ms()
        rest_ms = max(1, self._job.rule.next_close_ms(now_ms) - now_ms)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + rest_ms)
