"""The ledger over a SQL database: `LedgerStore`, once, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evertally.accountants.budget import book, releases
from evertally.accountants.budget.charges import ChargeRequest, Cost, cost
from evertally.accountants.budget.ledger import (
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
from evertally.accountants.budget.verify import verify_scope, verify_shard
from evertally.errors import IntegrityError, InvalidParameter
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
            lambda tx: book.create_scope(tx, self._key, scope), book.scope_lock(scope.name)
        )

    def scope_status(self, name: str) -> ScopeStatus:
        """See `LedgerStore`."""
        return self._read(lambda tx: book.read_scope(tx, self._key, name).status())

    def scopes(self) -> list[ScopeStatus]:
        """See `LedgerStore`."""
        return self._read(lambda tx: [row.status() for row in book.read_scopes(tx, self._key)])

    def quote(self, request: ChargeRequest) -> Receipt:
        """See `LedgerStore`."""
        price = self._price(request)
        return self._read(lambda tx: book.quote(tx, self._key, request, price))

    def reserve(self, request: ChargeRequest, ttl_ms: int) -> Receipt:
        """See `LedgerStore`."""
        positive_integer("ttl_ms", ttl_ms, high=_TTL_MS_MAX)
        return self._record(request, ttl_ms)

    def charge(self, request: ChargeRequest) -> Receipt:
        """See `LedgerStore`."""
        return self._record(request, None)

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

    def charges(self, scope: str, after_seq: int = 0, limit: int = 1000) -> list[ChargeRow]:
        """See `LedgerStore`."""
        integer("after_seq", after_seq, low=0)
        positive_integer("limit", limit, high=100_000)
        return self._read(lambda tx: book.charge_rows(tx, scope, after_seq, limit))

    def open_stream(self, stream: StreamRecord, charge: ChargeRequest) -> OpenedStream:
        """See `LedgerStore`."""
        descriptor, price = releases.check_record(stream), self._price(charge)

        def work(tx: Transaction) -> OpenedStream:
            receipt = book.record(tx, self._key, charge, price, None)
            known = releases.stream_of_charge(tx, receipt.charge_id)
            if known is not None:  # the answer to a retried request
                return self._find(tx, *known)
            return releases.insert_stream(tx, self._key, stream, descriptor, charge.scope, receipt.charge_id)

        locks = book.scope_lock(charge.scope), releases.stream_lock(stream.name)
        return self._writer.run(work, *locks)

    def find_stream(self, name: str, incarnation: int | None = None) -> OpenedStream | None:
        """See `LedgerStore`."""
        found = self._read(lambda tx: releases.read_stream(tx, self._key, name, incarnation))
        return None if found is None else found[1]

    def streams(self) -> list[OpenedStream]:
        """See `LedgerStore`."""

        def work(tx: Transaction) -> list[OpenedStream]:
            names = [row[0] for row in tx.rows("SELECT name FROM stream ORDER BY name")]
            found = [releases.read_stream(tx, self._key, name, None) for name in names]
            return [entry[1] for entry in found if entry is not None]

        return self._read(work)

    def acquire(self, shard: ShardRef, holder: str) -> int:
        """See `LedgerStore`."""
        if not isinstance(holder, str) or not 1 <= len(holder) <= 256 or "\x00" in holder:
            raise InvalidParameter("holder", type(holder).__name__, "a name of 1 to 256 characters")
        pk, _ = self._incarnation(shard)
        lock = releases.stream_lock(shard.stream)
        return self._writer.run(lambda tx: releases.acquire(tx, self._key, pk, shard, holder), lock)

    def head(self, shard: ShardRef) -> Head:
        """See `LedgerStore`."""
        pk, _ = self._incarnation(shard)
        return self._read(lambda tx: releases.read_head(tx, self._key, pk, shard).head)

    def commit_ticks(
        self, shard: ShardRef, epoch: int, first: int, rows: Sequence[ReleaseRow], last: int, sealed: bytes
    ) -> Head:
        """See `LedgerStore`."""
        pk, opened = self._incarnation(shard)
        keys = opened.shard_keys(shard.shard)
        releases.check_rows(keys, first, rows, last)
        if not isinstance(sealed, bytes | bytearray) or not sealed:
            raise InvalidParameter("sealed", type(sealed).__name__, "the sealed state as bytes")
        return self._writer.run(
            lambda tx: releases.append_ticks(
                tx, self._key, pk, shard, keys, epoch, first, rows, last, bytes(sealed)
            ),
            releases.stream_lock(shard.stream),
        )

    def releases(self, shard: ShardRef, after_t: int, limit: int) -> list[ReleaseRow]:
        """See `LedgerStore`."""
        integer("after_t", after_t, low=0)
        positive_integer("limit", limit)
        pk, opened = self._incarnation(shard)
        ticks = max(1, limit // max(1, len(opened.shard_keys(shard.shard))))

        def work(tx: Transaction) -> list[ReleaseRow]:
            head = releases.read_head(tx, self._key, pk, shard).head
            if after_t < head.folded_t:
                raise IntegrityError(f"rows up to tick {head.folded_t} are folded into the checkpoint")
            rows = releases.read_rows(tx, pk, shard.shard, after_t, min(after_t + ticks, head.t))
            if len(rows) != max(0, min(ticks, head.t - after_t)) * len(opened.shard_keys(shard.shard)):
                raise IntegrityError(f"stream {shard.stream} lost released rows after tick {after_t}")
            return rows

        return self._read(work)

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
        lock = releases.stream_lock(shard.stream)
        self._writer.run(lambda tx: releases.mark_published(tx, self._key, pk, shard, epoch, t, mark), lock)

    def fold(self, shard: ShardRef, epoch: int, through_t: int) -> int:
        """See `LedgerStore`."""
        pk, _ = self._incarnation(shard)
        lock = releases.stream_lock(shard.stream)
        return self._writer.run(lambda tx: releases.fold(tx, self._key, pk, shard, epoch, through_t), lock)

    def verify(self) -> VerifyReport:
        """See `LedgerStore`."""
        problems = self._backend.check()
        scopes = self._read(lambda tx: tx.rows("SELECT name FROM scope ORDER BY name"))
        charges = 0
        for (name,) in scopes:
            rows, found = verify_scope(self._backend, self._key, name)
            charges += rows
            problems += found
        shards, released = 0, 0
        for name, incarnation in self._read(
            lambda tx: tx.rows(
                "SELECT s.name, i.incarnation FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
                " ORDER BY s.name, i.incarnation"
            )
        ):
            try:
                pk, opened = self._incarnation(ShardRef(name, incarnation, 0))
            except IntegrityError as error:
                problems.append(str(error))
                continue
            for shard in range(opened.shards):
                rows, found = verify_shard(self._backend, self._key, pk, opened, shard)
                shards += 1
                released += rows
                problems += found
        return VerifyReport(len(scopes), charges, shards, released, tuple(problems))

    def close(self) -> None:
        """See `LedgerStore`."""
        self._backend.close()

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return read_stored(self._backend, work)

    def _record(self, request: ChargeRequest, ttl_ms: int | None) -> Receipt:
        price = self._price(request)
        return self._writer.run(
            lambda tx: book.record(tx, self._key, request, price, ttl_ms), book.scope_lock(request.scope)
        )

    def _price(self, request: ChargeRequest) -> Cost:
        scope = self._scopes.get(request.scope)
        if scope is None:
            scope = self.scope_status(request.scope).scope
            self._scopes[request.scope] = scope
        return cost(scope, request)

    def _charge_lock(self, charge_id: str, principal: str) -> str:
        return book.scope_lock(self._read(lambda tx: book.scope_of_charge(tx, charge_id, principal)))

    def _expire_scope(self, name: str) -> int:
        def work(tx: Transaction) -> int:
            return book.expire_due(tx, self._key, book.read_scope(tx, self._key, name), tx.now_ms())

        total, once = 0, -1
        while once:
            once = self._writer.run(work, book.scope_lock(name))
            total += once
        return total

    def _incarnation(self, shard: ShardRef) -> tuple[int, OpenedStream]:
        key = shard.stream, shard.incarnation
        if key not in self._opened:
            found = self._read(lambda tx: releases.read_stream(tx, self._key, *key))
            if found is None:
                raise InvalidParameter(
                    "shard", f"{shard.stream}/{shard.incarnation}", "a stream in this ledger"
                )
            self._opened[key] = found
        pk, opened = self._opened[key]
        integer("shard", shard.shard, low=0, high=opened.shards - 1)
        return pk, opened

    def _find(self, tx: Transaction, name: str, incarnation: int) -> OpenedStream:
        found = releases.read_stream(tx, self._key, name, incarnation)
        if found is None:
            raise IntegrityError(f"stream {name} lost an incarnation")
        return found[1]
