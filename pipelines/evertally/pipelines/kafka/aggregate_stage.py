"""First stage: events of the owned input partitions leave as sealed pieces, each event exactly once.

One Kafka transaction holds the pieces, the dead letters and the input offsets. What was read and not
committed is read again by whoever owns the partition next.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from evertally.errors import ServiceUnavailable
from evertally.pipelines.dead_letters import Reason
from evertally.pipelines.kafka.aggregation import (
    Accumulator,
    OpenTick,
    PartitionTally,
    ShardSums,
    TickRule,
)
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.candidates import Bindings, CandidateCounts
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.event_batches import EventReader, dead_letter
from evertally.pipelines.kafka.key_selection import slot_names
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.stage import Stall
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions
from evertally.pipelines.kafka.unit_events import UnitEvents, unit_numbers

__all__ = ["AggregateStage"]

_LOG: Final = logging.getLogger(__name__)
_POLL_MS: Final = 100
_POLL_RECORDS: Final = 4000
_ASK_AGAIN_S: Final = 1.0
_ROWS_MAX: Final = 100_000
_UNIT_ROW_BYTES: Final = 48  # twice what an event takes in a piece
_TRANSACTION_TIMEOUT_MS: Final = 15_000


class AggregateStage:
    """Consumes events. Unit level: pieces are sealed events by unit; event level: sums by shard."""

    name = "aggregate"

    def __init__(self, context: StreamContext, clock: ClockGuard) -> None:
        config = context.config
        self._context: Final = context
        self._config: Final = config
        self._clock: Final = clock
        self._topic: Final = config.topics.events
        self._target: Final = config.topics.closed if config.bound is None else config.topics.units
        self._sealer: Final = context.sealer(self._target)
        self._life: Final = context.life
        self._number_unit: Final = unit_numbers(context.secret("unit"))
        self._bindings: Final = (
            None
            if config.select is None
            else Bindings(
                *(config.broker, config.topics.keys, config.spec.name, context.opened.incarnation),
                slots=slot_names(config.select.slots),
            )
        )
        self._paid = config.spec.paid_horizon(context.opened)
        self._asked_at = -math.inf
        self._reader = self._make_reader()
        self._candidate_sealer: Final = context.sealer(config.topics.candidates)
        self._candidates: dict[int, _CandidateTally] = {}
        self._letter_key: Final = context.secret("dead-letter") if config.dead_letter_hmac else None
        self._rows_max: Final = (
            _ROWS_MAX
            if config.bound is None
            else min(_ROWS_MAX, config.max_request_bytes // _UNIT_ROW_BYTES - _POLL_RECORDS)
        )
        self._accumulator: Final[Callable[[], Accumulator]] = self._accumulators()
        self._transactions: Final = Transactions(
            config.broker,
            f"{config.topics.prefix}.{config.instance}.{self.name}",
            timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_bytes=config.max_request_bytes,
        )
        self._transactions.begin_epoch()
        self._member: Final = GroupMember(
            config.broker, config.membership(self.name), self._topic, max_poll_records=_POLL_RECORDS
        )
        self._tallies: dict[int, PartitionTally] = {}
        self._unsettled: set[int] = set()
        self._letters: list[Outgoing] = []
        self._committed_at = time.monotonic()
        self._stall: Final = Stall(self.name, config.stall_s)
        self._ready = False

    def turn(self) -> None:
        """See `Stage`."""
        polled = self._member.poll(self._poll_ms())
        for partition in polled.gone:
            self._tallies.pop(partition, None)
            self._candidates.pop(partition, None)
            self._unsettled.discard(partition)
        if polled.gone:
            self._forget_letters(polled.gone)
        self._unsettled |= set(polled.came)
        now_ms = self._clock.now_ms()
        self._take_up_horizon(now_ms)
        for partition, records in polled.records.items():
            self._read(partition, records, now_ms)
        if self._unsettled:
            self._settle()
        self._commit_if_due(now_ms)
        if not polled.records and not self._lagging() and not self._dirty():
            self._stall.moved()  # there is nothing to do
        self._stall.check()
        self._ready = self._member.joined() and self._member.owns() == self._tallies.keys()

    def ready(self) -> bool:
        """See `Stage`."""
        return self._ready

    def drain(self) -> None:
        """See `Stage`."""
        self._commit(self._closed_through(self._clock.now_ms()))
        self._transactions.close()
        self._member.leave()
        if self._bindings is not None:
            self._bindings.close()

    def _accumulators(self) -> Callable[[], Accumulator]:
        if self._config.bound is None:
            shard_of = self._context.shard_of()
            return lambda: ShardSums(shard_of, self._config.spec.shards)
        return lambda: UnitEvents(self._context.partitions.units)

    def _poll_ms(self) -> int:
        """Until records come, the next tick closes or a commit is due, whatever is first."""
        now_ms = self._clock.now_ms()
        return int(min(_POLL_MS, max(1, self._config.rule.next_close_ms(now_ms) - now_ms)))

    def _settle(self) -> None:
        """Take partitions over from what is committed, after the outcome of a failed commit is settled.

        Records of such a partition that come meanwhile are passed over; taking over seeks back to them.
        """
        try:
            if self._transactions.broken:
                self._transactions.begin_epoch()
            for partition in sorted(self._unsettled & self._member.owns()):
                self._take_over(partition)
                self._unsettled.discard(partition)
            self._unsettled &= self._member.owns()
        except ServiceUnavailable as error:
            _LOG.warning("partitions cannot be taken over yet: %s", error)

    def _take_over(self, partition: int) -> None:
        offset, text = self._member.committed(partition)
        open_tick = OpenTick.decode(text).within(self._life, self._context.opened.incarnation)
        self._member.seek(partition, offset)
        self._tallies[partition] = PartitionTally(
            partition, offset, open_tick, self._config.rule, self._accumulator()
        )
        if self._bindings is not None:
            self._candidates[partition] = _CandidateTally(partition, offset, open_tick, self._config.rule)
        _LOG.info("counting partition %d from tick %d", partition, open_tick)

    def _read(self, partition: int, records: Sequence[Any], now_ms: int) -> None:
        tally = self._tallies.get(partition)
        if tally is None:
            return
        records = [record for record in records if record.offset >= tally.position]
        if not records:
            return
        events, refusals = self._reader.read(partition, records, now_ms)
        tally.add(events, records[-1].offset + 1)
        self._context.metrics.read(len(records), (reason.value for _, _, reason in refusals))
        if self._bindings is not None:
            # an undeclared key is no dead letter here: it may be selected one day
            self._candidates[partition].count(self._reader.candidates(records, refusals), tally.position)
            refusals = [refusal for refusal in refusals if refusal[2] is not Reason.KEY_UNDECLARED]
        if refusals:
            payloads = {} if self._letter_key is None else {r.offset: r.value for r in records}
            for refusal in refusals:
                letter = dead_letter(self._topic, refusal, payloads.get(refusal[1]), self._letter_key)
                place = f"{partition}".encode()
                self._letters.append(Outgoing(self._config.topics.dead_letters, 0, place, letter))

    def _forget_letters(self, gone: Sequence[int]) -> None:
        places = {f"{partition}".encode() for partition in gone}
        self._letters = [letter for letter in self._letters if letter.key not in places]

    def _closed_through(self, now_ms: int) -> int:
        return self._config.rule.closed_through(now_ms) if self._clock.trusted() else 0

    def _commit_if_due(self, now_ms: int) -> None:
        closed = self._closed_through(now_ms)
        closing = any(closed >= tally.open_tick for tally in self._tallies.values())
        waited = (time.monotonic() - self._committed_at) * 1000 >= self._config.commit_ms
        full = (
            sum(tally.rows for tally in self._tallies.values()) >= self._rows_max
            or len(self._letters) >= 5000
        )
        if closing or full or (waited and self._dirty()):
            self._commit(closed)

    def _commit(self, closed: int) -> None:
        touched = {p: t for p, t in self._tallies.items() if t.dirty() or closed >= t.open_tick}
        if not touched or not self._member.joined():  # in a rebalance every commit is refused
            return
        incarnation = self._context.opened.incarnation
        records = list(self._letters)
        offsets = {}
        for partition, tally in touched.items():
            for destination, piece in tally.cut(self._life, incarnation, closed):
                records.append(Outgoing(self._target, destination, *self._sealer.seal(piece, destination)))
            if self._bindings is not None:
                records += self._cut_candidates(partition, closed)
            text = OpenTick(self._life, incarnation, max(tally.open_tick, closed + 1)).encode()
            offsets[TopicPartition(self._topic, partition)] = OffsetText(tally.position, text)
        try:
            self._transactions.run(records, offsets, self._member.identity())
        except ServiceUnavailable as error:
            _LOG.warning("a commit failed, reading again from the last one: %s", error)
            self._context.metrics.commit_failed(self.name)
            self._unsettled |= self._tallies.keys()
            self._tallies, self._candidates, self._letters = {}, {}, []
            return
        for partition, tally in touched.items():
            tally.committed(closed)
            if self._bindings is not None:
                self._candidates[partition].tally.committed(closed)
        if self._bindings is not None and self._bindings.refresh():
            self._reader = self._make_reader()
        self._letters = []
        self._committed_at = time.monotonic()
        self._lagging()
        self._stall.moved()

    def _cut_candidates(self, partition: int, closed: int) -> list[Outgoing]:
        pieces = self._candidates[partition].tally.cut(self._life, self._context.opened.incarnation, closed)
        topic = self._config.topics.candidates
        return [Outgoing(topic, 0, *self._candidate_sealer.seal(piece, 0)) for _, piece in pieces]

    def _make_reader(self) -> EventReader:
        config = self._config
        names = None if self._bindings is None else self._bindings.names(config.spec.keys)
        return EventReader(
            *(config.spec, config.source, config.rule, config.other, self._number_unit, names),
            paid_horizon=self._paid,
        )

    def _take_up_horizon(self, now_ms: int) -> None:
        """Where ticks come that were not paid for, ask the ledger whether they are by now."""
        latest = self._config.rule.latest_tick(now_ms)
        if latest <= self._paid or time.monotonic() - self._asked_at < _ASK_AGAIN_S:
            return
        opened = self._context.opened
        found = self._context.store.find_stream(opened.name, opened.incarnation)
        self._asked_at = time.monotonic()
        if found is not None and self._config.spec.paid_horizon(found) > self._paid:
            self._paid = self._config.spec.paid_horizon(found)
            self._reader = self._make_reader()

    def _dirty(self) -> bool:
        return any(tally.dirty() for tally in self._tallies.values())

    def _lagging(self) -> bool:
        lag = self._member.lag()
        self._context.metrics.lag(self.name, lag)
        return bool(lag)


class _CandidateTally:
    """Undeclared keys of one input partition; they count in the tick that is open when they are read."""

    def __init__(self, partition: int, position: int, open_tick: int, rule: TickRule) -> None:
        self._counts: Final = CandidateCounts()
        self.tally: Final = PartitionTally(partition, position, open_tick, rule, self._counts)

    def count(self, keys: Mapping[str, int], stop: int) -> None:
        """Count keys of records up to offset `stop`."""
        self._counts.count(self.tally.open_tick, keys)
        self.tally.position = stop
