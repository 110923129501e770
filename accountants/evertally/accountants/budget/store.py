"""The ledger over a SQL database: `LedgerStore`, once, for SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from evertally.accountants.budget import book, heads, horizon, releases, scope_book, streams
from evertally.accountants.budget.canonical import is_storable
from evertally.accountants.budget.charges import ChargeRequest, Cost, cost, request_from_json
from evertally.accountants.budget.lines import CounterLine
from evertally.accountants.budget.records import (
    ChargeRow,
    Head,
    OpenedStream,
    Receipt,
    ReleaseRow,
    ShardRef,
    StreamRecord,
    VerifyReport,
)
from evertally.accountants.budget.schema import Dialect, is_current, migrate
from evertally.accountants.budget.scopes import Scope, ScopeStatus
from evertally.accountants.budget.sql import Backend, T, Transaction, Writer, read_stored
from evertally.accountants.budget.verify import verify_ledger
from evertally.errors import BudgetExceeded, EvertallyError, IntegrityError, InvalidParameter
from evertally.validation import integer, positive_integer

__all__ = ["SqlLedger"]

_TTL_MS_MAX = 7 * 24 * 3600 * 1000


class SqlLedger:
    """See `LedgerStore`; open it with `open_ledger`."""

    def __init__(self, backend: Backend, dialect: Dialect, chain_key: bytes) -> None:
        self._backend = backend
        self._writer = Writer(backend)
        self._key = chain_key
        self._scopes: dict[str, Scope] = {}
        self._opened: dict[tuple[str, int], tuple[int, OpenedStream]] = {}
        try:
            if not backend.read(lambda tx: is_current(tx, chain_key)):
                self._writer.run(lambda tx: migrate(tx, dialect, chain_key), "schema")
        except BaseException:
            backend.close()
            raise

    def create_scope(self, scope: Scope) -> ScopeStatus:
        """See `LedgerStore`."""
        return self._writer.run(
            lambda tx: scope_book.create_scope(tx, self._key, scope), scope_book.scope_lock(scope.name)
        )

    def scope_status(self, name: str) -> ScopeStatus:
        """See `LedgerStore`."""
        return self._read(lambda tx: scope_book.read_scope(tx, self._key, name).status())

    def scopes(self) -> list[ScopeStatus]:
        """See `LedgerStore`."""
        return self._read(lambda tx: [row.status() for row in scope_book.read_scopes(tx, self._key)])

    def quote(self, request: ChargeRequest) -> Receipt:
        """See `LedgerStore`."""
        price = self._price(request)
        self._expire_scope(request.scope)  # as a charge does: what has lapsed is not spent any more
        return self._read(lambda tx: book.quote(tx, self._key, request, price))

    def reserve(self, request: ChargeRequest, ttl_ms: int) -> Receipt:
        """See `LedgerStore`."""
        return self._record(request, ttl_ms)

    def charge(self, request: ChargeRequest) -> Receipt:
        """See `LedgerStore`."""
        return self._record(request, None)

    def record_all(
        self, wishes: Sequence[tuple[ChargeRequest, int | None]]
    ) -> list[Receipt | EvertallyError]:
        """See `LedgerStore`."""
        answers: dict[int, Receipt | EvertallyError] = {}
        pieces: dict[int, tuple[Callable[[Transaction], Receipt], tuple[str, ...]]] = {}
        for place, (request, ttl_ms) in enumerate(wishes):
            try:
                pieces[place] = self._recording(request, ttl_ms)
            except EvertallyError as error:
                answers[place] = error
        self._decide(pieces, answers)
        refused = [place for place, answer in answers.items() if isinstance(answer, BudgetExceeded)]
        swept = {scope: self._made_room(scope) for scope in {wishes[place][0].scope for place in refused}}
        self._decide({place: pieces[place] for place in refused if swept[wishes[place][0].scope]}, answers)
        return [answers[place] for place in range(len(wishes))]

    def commit_charge(self, charge_id: str, principal: str = "local") -> Receipt:
        """See `LedgerStore`."""
        lock = self._charge_lock(charge_id, principal)
        return self._writer.run(lambda tx: book.commit_reservation(tx, self._key, charge_id, principal), lock)

    def expire(self, charge_id: str | None = None, principal: str = "local") -> int:
        """See `LedgerStore`."""
        if charge_id is not None:
            lock = self._charge_lock(charge_id, principal)
            return self._writer.run(lambda tx: book.expire_one(tx, self._key, charge_id, principal), lock)
        return sum(self._expire_scope(status.scope.name) for status in self.scopes())

    def charge_of(self, charge_id: str, principal: str = "local") -> ChargeRequest:
        """See `LedgerStore`."""
        state = self._read(lambda tx: book.owned(tx, self._key, charge_id, principal))
        return request_from_json(json.loads(state.line), principal)

    def charges(self, scope: str, after_seq: int = 0, limit: int = 1000) -> list[ChargeRow]:
        """See `LedgerStore`."""
        integer("after_seq", after_seq, low=0)
        positive_integer("limit", limit, high=100_000)
        return self._read(lambda tx: scope_book.charge_rows(tx, scope, after_seq, limit))

    def open_stream(self, stream: StreamRecord, charge: ChargeRequest) -> OpenedStream:
        """See `LedgerStore`."""
        descriptor, price = streams.check_record(stream), self._price(charge)
        line = charge.line
        paid = line.parameters.slack_horizon if isinstance(line, CounterLine) else None
        if isinstance(line, CounterLine) and len(stream.keys) > line.parameters.keys:
            raise InvalidParameter(
                "stream.keys", len(stream.keys), f"at most {line.parameters.keys}, which are charged"
            )

        def work(tx: Transaction) -> OpenedStream:
            receipt = book.record(tx, self._key, charge, price, None)
            known = streams.stream_of_charge(tx, receipt.charge_id)
            if known is not None:  # the answer to a retried request
                opened = self._known(tx, *known)[1]
                if not streams.is_of_record(opened, stream, descriptor):
                    raise InvalidParameter(
                        "idempotency_key", charge.idempotency_key, "a new key: this one opened another stream"
                    )
                return opened
            return streams.insert_stream(
                tx, self._key, stream, descriptor, charge.scope, receipt.charge_id, paid
            )

        locks = scope_book.scope_lock(charge.scope), streams.stream_lock(stream.name)
        return self._admitted(charge.scope, work, *locks)

    def quote_horizon(self, stream: str, incarnation: int, slack_horizon: int) -> Receipt:
        """See `LedgerStore`."""
        _, found = self._read(lambda tx: self._known(tx, stream, incarnation))
        self._expire_scope(found.scope)

        def work(tx: Transaction) -> Receipt:
            _, opened = self._known(tx, stream, incarnation)
            return horizon.quote_extension(tx, self._key, opened, slack_horizon)

        return self._read(work)

    def extend_horizon(self, stream: str, incarnation: int, slack_horizon: int) -> Receipt:
        """See `LedgerStore`."""
        _, found = self._read(lambda tx: self._known(tx, stream, incarnation))
        self._expire_scope(found.scope)

        def work(tx: Transaction) -> Receipt:
            return horizon.extend(tx, self._key, *self._known(tx, stream, incarnation), slack_horizon)

        return self._writer.run(work, scope_book.scope_lock(found.scope), streams.stream_lock(stream))

    def find_stream(self, name: str, incarnation: int | None = None) -> OpenedStream | None:
        """See `LedgerStore`."""
        found = self._read(lambda tx: streams.read_stream(tx, self._key, name, incarnation))
        return None if found is None else found[1]

    def streams(self) -> list[OpenedStream]:
        """See `LedgerStore`."""

        def work(tx: Transaction) -> list[OpenedStream]:
            names = [row[0] for row in tx.rows("SELECT name FROM stream ORDER BY name")]
            found = [streams.read_stream(tx, self._key, name, None) for name in names]
            return [entry[1] for entry in found if entry is not None]

        return self._read(work)

    def acquire(self, shard: ShardRef, holder: str) -> int:
        """See `LedgerStore`."""
        if not is_storable(holder) or not 1 <= len(holder) <= 256:
            raise InvalidParameter("holder", type(holder).__name__, "a name of 1 to 256 characters")
        pk, _ = self._incarnation(shard)
        lock = streams.stream_lock(shard.stream)
        return self._writer.run(lambda tx: heads.acquire(tx, self._key, pk, shard, holder), lock)

    def head(self, shard: ShardRef) -> Head:
        """See `LedgerStore`."""
        pk, _ = self._incarnation(shard)
        return self._read(lambda tx: heads.read_head(tx, self._key, pk, shard).head)

    def commit_ticks(
        self, shard: ShardRef, epoch: int, first: int, rows: Sequence[ReleaseRow], last: int, sealed: bytes
    ) -> Head:
        """See `LedgerStore`."""
        pk, opened = self._incarnation(shard)
        if opened.slack_horizon is not None and last > opened.slack_horizon:
            self._opened.pop((shard.stream, shard.incarnation), None)  # it may have been extended since
            pk, opened = self._incarnation(shard)
        ticks = releases.checked_ticks(opened.shard_keys(shard.shard), first, rows, last)
        releases.require_paid(opened, last)
        if not isinstance(sealed, bytes | bytearray) or not sealed:
            raise InvalidParameter("sealed", type(sealed).__name__, "the sealed state as bytes")
        state = bytes(sealed)
        return self._writer.run(
            lambda tx: releases.append_ticks(tx, self._key, pk, shard, epoch, ticks, state),
            streams.stream_lock(shard.stream),
        )

    def releases(self, shard: ShardRef, after_t: int, limit: int) -> list[ReleaseRow]:
        """See `LedgerStore`."""
        integer("after_t", after_t, low=0)
        positive_integer("limit", limit)
        pk, opened = self._incarnation(shard)
        ticks = max(1, limit // max(1, len(opened.shard_keys(shard.shard))))
        return self._read(lambda tx: releases.read_rows(tx, self._key, pk, opened, shard, after_t, ticks))

    def chain_at(self, shard: ShardRef, t: int) -> bytes:
        """See `LedgerStore`."""
        integer("t", t, low=0, high=2**62)
        pk, _ = self._incarnation(shard)
        return self._read(lambda tx: releases.chain_at(tx, self._key, pk, shard, t))

    def check_anchor(self, shard: ShardRef, t: int, chain: bytes | None = None) -> None:
        """See `LedgerStore`."""
        integer("t", t, low=0, high=2**62)
        head = self.head(shard)
        if t > head.t:
            raise IntegrityError(
                f"tick {t} of {shard.stream} is public, the ledger ends at {head.t}: "
                "the public topic is ahead of the ledger, refuse to start"
            )
        if chain is not None and t >= head.folded_t and self.chain_at(shard, t) != chain:
            raise IntegrityError(
                f"tick {t} of {shard.stream} was published with other rows than the ledger holds"
            )

    def mark_published(self, shard: ShardRef, epoch: int, t: int, mark: int) -> None:
        """See `LedgerStore`."""
        pk, _ = self._incarnation(shard)
        lock = streams.stream_lock(shard.stream)
        self._writer.run(lambda tx: heads.mark_published(tx, self._key, pk, shard, epoch, t, mark), lock)

    def fold(self, shard: ShardRef, epoch: int, through_t: int) -> int:
        """See `LedgerStore`."""
        pk, _ = self._incarnation(shard)
        lock = streams.stream_lock(shard.stream)
        return self._writer.run(lambda tx: releases.fold(tx, self._key, pk, shard, epoch, through_t), lock)

    def verify(self) -> VerifyReport:
        """See `LedgerStore`."""
        return verify_ledger(self._backend, self._key)

    def close(self) -> None:
        """See `LedgerStore`."""
        self._backend.close()

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return read_stored(self._backend, work)

    def _record(self, request: ChargeRequest, ttl_ms: int | None) -> Receipt:
        work, locks = self._recording(request, ttl_ms)
        return self._admitted(request.scope, work, *locks)

    def _admitted(self, scope: str, work: Callable[[Transaction], T], *locks: str) -> T:
        """What work answers; where it does not fit, once more after all that has lapsed was returned.

        The refusal undid what the work itself had returned, and it looks at a bounded number only.
        """
        try:
            return self._writer.run(work, *locks)
        except BudgetExceeded:
            if not self._made_room(scope):
                raise
        return self._writer.run(work, *locks)

    def _made_room(self, scope: str) -> bool:
        """Whether lapsed reservations were returned; False where that failed, and a refusal stands."""
        try:
            return self._expire_scope(scope) > 0
        except EvertallyError:
            return False

    def _decide(
        self,
        pieces: dict[int, tuple[Callable[[Transaction], Receipt], tuple[str, ...]]],
        answers: dict[int, Receipt | EvertallyError],
    ) -> None:
        for place, answer in zip(pieces, self._writer.run_all(list(pieces.values())), strict=True):
            if not isinstance(answer, Receipt | EvertallyError):
                raise answer
            answers[place] = answer

    def _recording(
        self, request: ChargeRequest, ttl_ms: int | None
    ) -> tuple[Callable[[Transaction], Receipt], tuple[str, ...]]:
        """What records a charge, and the locks it needs."""
        if ttl_ms is not None:
            positive_integer("ttl_ms", ttl_ms, high=_TTL_MS_MAX)
        price = self._price(request)
        locks = (scope_book.scope_lock(request.scope),)
        return (lambda tx: book.record(tx, self._key, request, price, ttl_ms)), locks

    def _price(self, request: ChargeRequest) -> Cost:
        scope = self._scopes.get(request.scope)
        if scope is None:
            scope = self.scope_status(request.scope).scope
            self._scopes[request.scope] = scope
        return cost(scope, request)

    def _charge_lock(self, charge_id: str, principal: str) -> str:
        return scope_book.scope_lock(
            self._read(lambda tx: book.owned(tx, self._key, charge_id, principal)).scope
        )

    def _expire_scope(self, name: str) -> int:
        def lapsed(tx: Transaction) -> bool:
            return book.any_due(tx, scope_book.read_scope(tx, self._key, name), tx.now_ms())

        def work(tx: Transaction) -> int:
            return book.expire_due(tx, self._key, scope_book.read_scope(tx, self._key, name), tx.now_ms())

        total = 0
        while self._read(lapsed):
            total += self._writer.run(work, scope_book.scope_lock(name))
        return total

    def _incarnation(self, shard: ShardRef) -> tuple[int, OpenedStream]:
        key = shard.stream, shard.incarnation
        found = self._opened.get(key)
        if found is None:
            found = self._opened[key] = self._read(lambda tx: self._known(tx, *key))
        pk, opened = found
        integer("shard", shard.shard, low=0, high=opened.shards - 1)
        return pk, opened

    def _known(self, tx: Transaction, name: str, incarnation: int) -> tuple[int, OpenedStream]:
        found = streams.read_stream(tx, self._key, name, incarnation)
        if found is None:
            raise InvalidParameter("stream", f"{name}/{incarnation}", "a stream in this ledger")
        return found
