"""The releaser: closings in, noisy totals out, each exactly once.

For every tick: the exact sums join the noise in the counter, one ledger transaction stores the
released integers together with the sealed state, and only stored rows are published. A crash between
storing and publishing repeats the stored bytes; a second releaser is fenced off by its epoch. A second
value for one tick would be a privacy loss, so nothing here ever computes a tick twice.
"""

from __future__ import annotations

import hmac
import struct
from typing import Final, NoReturn, Self

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream, Receipt, ReleaseRow
from evertally.counters.bank import CounterBank
from evertally.counters.encoding import pack_integers
from evertally.counters.keys import KeyedNoise
from evertally.counters.mechanisms import parse_mechanism
from evertally.counters.snapshot import frame, unframe
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.outbox import release_lines
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.sinks import Sink
from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["Releaser", "stored_positions"]

_STATE_VERSION: Final = 1
_CHAIN_BYTES: Final = 32
_CHAIN_START: Final = bytes(_CHAIN_BYTES)
_TICKS_A_TRANSACTION: Final = 512
_TICKS_A_PUBLICATION: Final = 4096


class Releaser:
    """The one releaser of a stream's shard.

    Guarantees:
        - each (stream, key, incarnation, t) gets one value, ever, whatever crashes or replays
          (test_releaser_kill_anywhere, test_releaser_fenced).
        - input that differs from what a released tick was computed from is noticed and refused.
    """

    def __init__(
        self,
        store: LedgerStore,
        spec: StreamSpec,
        opened: OpenedStream,
        keyfile: KeyFile,
        shard: int,
        holder: str,
    ) -> None:
        """Take over a shard of an opened stream; use `Releaser.open`."""
        self._store: Final = store
        self._spec: Final = spec
        self._opened: Final = opened
        self._shard: Final = opened.shard(shard)
        self._epoch: Final = store.acquire(self._shard, holder)
        names = dict(zip(opened.key_indices, opened.keys, strict=True))
        self._indices: Final = opened.shard_keys(shard)
        self.keys: Final = tuple(names[index] for index in self._indices)
        place = (opened.name, opened.stream_id, opened.incarnation)
        self._sealer: Final = Sealer(keyfile.derive("seal", *place), opened.name, opened.incarnation)
        self._chain_key: Final = keyfile.derive("chain", *place)
        self._bank: Final = CounterBank(
            parse_mechanism(spec.mechanism),
            spec.grid_to(spec.paid_horizon(opened)),
            KeyedNoise(keyfile.noise_key(*place), self._indices),
        )
        self._chain = _CHAIN_START
        self._positions = b""
        self._replayed_t, self._replayed_chain = 0, _CHAIN_START
        self._unsure = False
        self._recover()

    @classmethod
    def open(
        cls,
        store: LedgerStore,
        spec: StreamSpec,
        keyfile: KeyFile,
        *,
        holder: str,
        shard: int = 0,
        new_incarnation: bool = False,
    ) -> Self:
        """Create the stream with its one charge, or recover it; fences any other releaser of the shard.

        Args:
            store: the ledger.
            spec: the stream's declaration.
            keyfile: the secret it was created with.
            holder: who releases, in words for the ledger (host and process).
            shard: which shard.
            new_incarnation: pay for a new incarnation: new keys, totals from 0, a new charge.

        Raises:
            BudgetExceeded: the scope does not admit the charge; nothing was drawn.
            InvalidParameter: a parameter differs from the running incarnation's.
            IntegrityError: the ledger's state does not open with this key file, or contradicts itself.
        """
        store.create_scope(spec.scope)
        opened = None if new_incarnation else store.find_stream(spec.name)
        if opened is None:
            charge = spec.charge() if new_incarnation else spec.first_charge()
            opened = store.open_stream(spec.record(), charge)
        spec.require_same(opened)
        return cls(store, spec, opened, keyfile, shard, holder)

    @property
    def next_tick(self) -> int:
        """First tick that is not released yet."""
        return self._bank.t + 1

    @property
    def incarnation(self) -> int:
        """The running incarnation."""
        return self._opened.incarnation

    @property
    def positions(self) -> bytes:
        """Input positions sealed with the last released tick; where a live source goes on."""
        return self._positions

    @property
    def header(self) -> StreamHeader:
        """The public header of the stream."""
        return self._spec.header(self._opened.incarnation)

    def release(self, block: ClosingBlock) -> int:
        """Release consecutive ticks; returns how many ticks became new rows of the ledger.

        Ticks that were released before (a source that reads again from the start) are compared with
        the input chain and never computed again.

        Raises:
            IntegrityError: a gap before the first tick, or other data for a tick that is released.
            Fenced: another releaser has taken over.
            StorageFull: a durable write failed; nothing of it was released.
            UnsupportedMechanism: a tick lies past the horizon that is paid for; nothing was drawn.
        """
        if self._unsure:
            raise IntegrityError("a commit failed or its outcome is unknown; open the releaser again")
        if block.stream != self._spec.name or set(block.keys) != set(self.keys):
            raise InvalidParameter("closing", f"keys of {block.stream!r}", "this shard's keys of this stream")
        column = {key: position for position, key in enumerate(block.keys)}
        order = [column[key] for key in self.keys]
        rows = [[row[position] for position in order] for row in block.sums.tolist()]
        seen = min(max(self._bank.t - block.first + 1, 0), len(rows))
        self._compare(block.first, rows[:seen])
        for low in range(seen, len(rows), _TICKS_A_TRANSACTION):
            part = slice(low, low + _TICKS_A_TRANSACTION)
            self._commit(block.first + low, rows[part], block.tick_ends_ms[part], block.positions)
        return len(rows) - seen

    def extend_horizon(self, slack_horizon: int) -> Receipt:
        """Pay for the slack of ticks up to `slack_horizon`; what is paid for already costs nothing.

        A running releaser also takes up, at its old horizon, what another process has paid for.

        Raises:
            BudgetExceeded: the scope does not admit the difference; the stream ends where it did.
            InvalidParameter: an earlier horizon, or one beyond the mechanism's.
        """
        receipt = self._store.extend_horizon(self._shard.stream, self._shard.incarnation, slack_horizon)
        self._bank.extend(self._spec.grid_to(slack_horizon))
        return receipt

    def publish(self, sink: Sink) -> int:
        """Bring the sink up to the ledger's head from stored rows alone; returns the ticks published.

        Raises:
            IntegrityError: the sink holds a later tick than the ledger, which was rolled back.
        """
        public = sink.last_tick()  # before the ledger, which another releaser may still move forward
        head = self._store.head(self._shard)
        if public > head.t:
            raise IntegrityError(
                f"tick {public} is published, but the ledger ends at {head.t}: an older ledger was put back"
            )
        sink.rewind(head.published_mark)
        published = head.published_t
        while published < head.t:
            rows = self._store.releases(self._shard, published, _TICKS_A_PUBLICATION * len(self.keys))
            mark = sink.append(release_lines(self._opened, rows))
            published = rows[-1].t
            self._store.mark_published(self._shard, self._epoch, published, mark)
        return published - head.published_t

    def _recover(self) -> None:
        head = self._store.head(self._shard)
        if head.sealed is None:
            if head.t != 0:
                raise IntegrityError("the ledger has released ticks without a sealed state")
            return
        self._chain, self._positions, bank = _open_state(self._sealer, self._shard.shard, head.t, head.sealed)
        self._bank.load(bank)
        if self._bank.t != head.t:
            raise IntegrityError("the sealed state and the ledger's head are at different ticks")

    def _compare(self, first: int, rows: list[list[int]]) -> None:
        """Follow the input chain over ticks that are released; at the head it must be the sealed one."""
        for offset, row in enumerate(rows):
            if first + offset != self._replayed_t + 1:
                raise IntegrityError("released ticks are offered again, but not from the first one")
            self._replayed_t += 1
            self._replayed_chain = self._follow(self._replayed_chain, self._replayed_t, row)
        if rows and self._replayed_t == self._bank.t and self._replayed_chain != self._chain:
            raise IntegrityError(
                "the input differs from the data that released ticks were computed from; nothing was released"
            )

    def _commit(self, first: int, rows: list[list[int]], ends_ms: tuple[int, ...], positions: bytes) -> None:
        if first != self.next_tick:
            raise IntegrityError(f"tick {first} is offered, but the next one to release is {self.next_tick}")
        if 0 < self._replayed_t < self._bank.t:
            raise IntegrityError("the source began again but stopped short of the released ticks")
        self._extend_to(first + len(rows) - 1)
        chain = self._chain
        for offset, row in enumerate(rows):
            chain = self._follow(chain, first + offset, row)
        self._unsure = True  # until the ledger has answered, memory may be ahead of it
        released = self._bank.close_ticks(rows)
        state = struct.pack(">I", len(positions)) + positions + self._bank.snapshot()
        last = first + len(rows) - 1
        self._store.commit_ticks(
            self._shard,
            self._epoch,
            first,
            [
                ReleaseRow(index, tick.t, value, tick.standard_error, end_ms)
                for tick, end_ms in zip(released, ends_ms, strict=True)
                for index, value in zip(self._indices, tick.values, strict=True)
            ],
            last,
            self._sealer.seal(frame(_STATE_VERSION, chain + state), self._shard.shard, last),
        )
        self._unsure = False
        self._chain, self._positions = chain, positions
        if self._replayed_t:
            self._replayed_t, self._replayed_chain = last, chain

    def _extend_to(self, last: int) -> None:
        """At the end of what was paid for, ask the ledger whether more has been since."""
        if last <= self._bank.grid.slack_horizon:
            return
        opened = self._store.find_stream(self._shard.stream, self._shard.incarnation)
        if opened is not None and opened.slack_horizon is not None:
            self._bank.extend(self._spec.grid_to(opened.slack_horizon))
        if last > self._bank.grid.slack_horizon:
            raise UnsupportedMechanism(
                f"tick {last} lies past the horizon {self._bank.grid.slack_horizon} that "
                f"{self._spec.name} paid for; `evertally ledger extend-horizon` pays for more"
            )

    def _follow(self, chain: bytes, t: int, row: list[int]) -> bytes:
        return hmac.digest(self._chain_key, chain + struct.pack(">Q", t) + pack_integers(row), "sha256")

    def __repr__(self) -> str:
        return f"Releaser({self._shard}, next_tick={self.next_tick}, <secrets redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a releaser does not pickle")


def stored_positions(
    store: LedgerStore, opened: OpenedStream, keyfile: KeyFile, shard: int
) -> tuple[int, bytes]:
    """Last released tick of a shard and the input positions sealed with it; (0, b"") before the first.

    For who reads the input and does not release: the shard's releaser is not fenced.

    Raises IntegrityError: the state does not open with this key file.
    """
    head = store.head(opened.shard(shard))
    if head.sealed is None:
        return head.t, b""
    place = (opened.name, opened.stream_id, opened.incarnation)
    sealer = Sealer(keyfile.derive("seal", *place), opened.name, opened.incarnation)
    return head.t, _open_state(sealer, shard, head.t, head.sealed)[1]


def _open_state(sealer: Sealer, shard: int, t: int, sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """Input chain, input positions and the bank's snapshot in a sealed state."""
    _, body = unframe(sealer.open(sealed, shard, t), (_STATE_VERSION,))
    if len(body) < _CHAIN_BYTES + 4:
        raise IntegrityError("a sealed state is cut short")
    (size,) = struct.unpack_from(">I", body, _CHAIN_BYTES)
    at = _CHAIN_BYTES + 4
    return body[:_CHAIN_BYTES], body[at : at + size], body[at + size :]
