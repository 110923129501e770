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
    """One lane a key: messages in, sealed closings out when the clock says so, dead letters at once.

    Empty messages come to every lane all the time (job.py). They wake it; what closes ticks is its own clock.
    Flink's timers are not used: one that Python had set was not in the checkpoint that held its lane's state.
    """

    def __init__(self, job: JobParameters) -> None:
        self._job = job

    def open(self, runtime_context: RuntimeContext) -> None:
        """See KeyedProcessFunction."""
        job = self._job
        keys = job.open_keys()
        self._clock = ClockGuard(job.rule.tick_ms)
        self._told = False
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

    def process_element(self, value: Row, ctx: Any) -> Iterator[Any]:  # noqa: ARG002 - Flink's signature
        """A message of a batch, or an empty one."""
        message = Message.decode(value[0])
        lane, now_ms = message.lane, self._clock.now_ms()
        sealed = self._head.value()
        head = LaneHead(1, 0) if sealed is None else LaneHead.decode(self._sealer.open(sealed, lane, HEAD))
        if message.rows.shape[1]:
            self._open.add(lane, assign_ticks(message.rows, self._job.rule, head, now_ms))
        for letter in message.letters:
            yield Row(LETTER, str(letter.partition).encode(), letter.body)
        through = self._closed_through(now_ms)
        if through >= head.open_tick:
            totals = self._open.close(lane, through)
            life, incarnation = self._job.life, self._job.incarnation
            pieces, head = cut_pieces(life, incarnation, lane, head, through, totals, self._positions)
            self._head.update(self._sealer.seal(head.encode(), lane, HEAD))
            for shard, piece in pieces:
                yield Row(shard, *self._closings.seal(piece, shard))

    def _closed_through(self, now_ms: int) -> int:
        """Last tick that is over; none while the machine's clock cannot be trusted."""
        if self._clock.trusted():
            return self._job.rule.closed_through(now_ms)
        if not self._told:
            _LOG.error("the machine's clock was set: no tick closes until the job is started again")
        self._told = True
        return 0
