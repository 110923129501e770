"""The closing step: ticks that are whole become sealed closings for the releaser, each exactly once.

It needs no ledger and no noise key. A transaction carries the closing and the input positions behind it, so
that a job that was killed goes on exactly where its last visible closing ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue

from evertally.errors import EvertallyError, IntegrityError
from evertally.pipelines.beam.elements import tick_start
from evertally.pipelines.beam.parts import Part
from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.positions import Cuts, Digests
from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.beam.stream_ref import AggregationHandle, AggregationRef, opened
from evertally.pipelines.beam.tick_order import NEXT, WAITING, take_turn_behind
from evertally.pipelines.kafka.aggregation import TickRule, positions_of
from evertally.pipelines.kafka.sealed_records import Piece, Place, StreamSealer
from evertally.pipelines.kafka.sums import encode_sums
from evertally.pipelines.kafka.transactions import Outgoing, Transactions

__all__ = ["CloseTicks", "Closing"]

_SHARD: Final = 0
_SOURCE: Final = 0
_TIMEOUT_MS: Final = 15_000
_TICKS_A_TRANSACTION: Final = 256


@dataclass(frozen=True, slots=True)
class Closing:
    """What a closing step knows; public.

    Attributes:
        stream: the stream, with the topic of its closings.
        rule: its ticks.
        sources: how many sources end a tick.
        keep_cuts: how many ends of ticks of each input partition are kept with a closing.
    """

    stream: AggregationRef
    rule: TickRule
    sources: int
    keep_cuts: int = 1


class _Writer:
    """The one writer of a stream's closings; opening it fences every other one."""

    def __init__(self, step: Closing) -> None:
        self._step: Final = step
        self._handle: Final[AggregationHandle] = opened(step.stream)
        keys, topic = self._handle.keys, step.stream.topic
        self._sealer: Final = StreamSealer(keys.closing, topic.name, keys.stream_id, keys.incarnation)
        self._keys: Final = positions_of(step.stream.shard_of, 1)[_SHARD]
        self.lock: Final = threading.RLock()
        self._transactions: Final = Transactions(
            with_password(topic.broker),
            f"{topic.prefix}.close.{_SHARD}",
            timeout_ms=_TIMEOUT_MS,
            max_request_bytes=topic.max_request_bytes,
        )
        try:
            self._transactions.begin_epoch()  # what another writer left open is settled before we look
            self._through, self._positions = self._handle.positions()
        except BaseException:
            self._transactions.close()
            raise

    @property
    def next_tick(self) -> int:
        """First tick without a closing."""
        return self._through + 1

    def at_head(self) -> bool:
        """Whether nobody else has written since."""
        return self._handle.head() == self._through

    def write(self, parts: Sequence[Part]) -> None:
        """Close ticks that follow one another; those that have a closing are left as they are."""
        for part in parts:
            part.check_whole(self._step.sources)
        new = [part for part in parts if part.t > self._through]
        if self._step.stream.topic.events is None:
            for part in parts[: len(parts) - len(new)]:
                Digests.decode(self._positions).require_same(part, self._handle.digest_key)
        for low in range(0, len(new), _TICKS_A_TRANSACTION):
            self._commit(new[low : low + _TICKS_A_TRANSACTION])

    def place(self, t: int) -> Place:
        """Where the closing of a tick stands; public."""
        return Place(self._handle.life, self._handle.incarnation, _SOURCE, t, end=True)

    def close(self) -> None:
        """Stop the producer."""
        self._transactions.close()

    def _commit(self, parts: Sequence[Part]) -> None:
        if parts[0].t != self.next_tick:
            raise IntegrityError(f"tick {parts[0].t} would close before tick {self.next_tick}")
        positions = self._positions
        records = []
        for part in parts:
            positions = self._followed(positions, part)
            piece = Piece(self.place(part.t), part.t - 1, part.t, encode_sums(part.sums, self._keys))
            topic = self._step.stream.topic
            records.append(Outgoing(topic.name, _SHARD, *self._sealer.seal(piece, _SHARD)))
        through = parts[-1].t
        offsets = self._handle.log.offsets(through, positions)
        self._transactions.run(records, offsets, topic.group)
        self._through, self._positions = through, positions

    def _followed(self, before: bytes, part: Part) -> bytes:
        if self._step.stream.topic.events is None:
            digests = Digests.decode(before) if before else Digests(0, ())
            return digests.followed_by(part, self._handle.digest_key).encode()
        partitions = self._step.stream.topic.events[1]
        cuts = Cuts.decode(before) if before else Cuts(0, ((),) * partitions)
        return cuts.followed_by(part, self._step.keep_cuts).encode()


class CloseTicks(beam.DoFn):
    """Tick after tick as they end; gives back the public place of each closing that is visible.

    Guarantees:
        - closings of a stream are written once and in order, whatever is computed again; the releaser's
          totals are those of the release step inside (tests/beam/test_beam_closings.py).
    """

    def __init__(self, step: Closing) -> None:
        self._step = step

    def process(
        self,
        element: tuple[int, bytes],
        waiting: Any = beam.DoFn.StateParam(WAITING),  # noqa: B008 - how Beam declares it
        following: Any = beam.DoFn.StateParam(NEXT),  # noqa: B008 - how Beam declares it
    ) -> Iterator[Any]:
        """Close the ticks whose turn has come."""
        sealer = opened(self._step.stream).sealer
        part = sealer.open(element[1])
        here = self._writer()
        if part.t > here.next_tick and not here.at_head():
            here = self._writer(anew=True)
        counted = self._step.stream.topic.events is not None
        turn = take_turn_behind(
            part, sealer, waiting, following, here.next_tick, self._step.sources, counted=counted
        )
        if not turn:
            return
        with here.lock:
            if not here.at_head():
                here = self._writer(anew=True)
            try:
                here.write(turn)
            except EvertallyError:
                _WRITERS.drop(self._step)  # what comes next starts from what is committed
                raise
        for one in turn:
            yield TimestampedValue(here.place(one.t).encode(), tick_start(self._step.rule, one.t))

    def _writer(self, *, anew: bool = False) -> _Writer:
        if anew:
            _WRITERS.drop(self._step)
        return _WRITERS.get(self._step, lambda: _Writer(self._step))


_WRITERS: Final[PerProcess[Closing, _Writer]] = PerProcess()
