"""The ledger's seam: what may be released is decided here, and one transaction makes a release real.

A stream is opened with one charge, its ticks are committed by the one fenced releaser of each shard,
and everything published is read back from here. Two stores stand behind this protocol (SQLite and
PostgreSQL) and one conformance suite runs on both. The store never decodes a sealed blob.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.scopes import Scope, ScopeStatus

__all__ = [
    "ChargeRow",
    "Head",
    "LedgerStore",
    "OpenedStream",
    "Receipt",
    "ReleaseRow",
    "ShardRef",
    "StreamRecord",
    "VerifyReport",
]

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShardRef:
    """One shard of one incarnation of a stream: the unit that one releaser holds."""

    stream: str
    incarnation: int
    shard: int


class ReleaseRow(NamedTuple):
    """One released total: what is published, nothing else.

    Attributes:
        key_index: the key's index in the ledger, stable for ever.
        t: the tick, from 1.
        value: the noisy total, an integer of any size.
        stderr: the standard error as published, decimal text.
        tick_end_ms: the tick's end, epoch milliseconds, the only public timestamp.
    """

    key_index: int
    t: int
    value: int
    stderr: str
    tick_end_ms: int


@dataclass(frozen=True, slots=True)
class Head:
    """Where a shard stands.

    Attributes:
        t: last committed tick, 0 before the first.
        epoch: the current fencing epoch, 0 before the first `acquire`.
        sealed: the releaser's sealed state after tick t, None before the first commit.
        chain: hash chain over all rows up to t, the anchor to publish with them.
        published_t: last tick marked published.
        published_mark: position of the sink after that tick (a file's byte length).
        folded_t: rows up to here are folded into the checkpoint.
    """

    t: int
    epoch: int
    sealed: bytes | None = field(repr=False)
    chain: bytes
    published_t: int
    published_mark: int
    folded_t: int = 0


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream to be opened.

    Attributes:
        name: the stream's name.
        keys: the declared keys in their declared order.
        shards: number of shards; the key with index i belongs to shard i mod shards.
        descriptor: public parameters (tick, start, clip, unit, mechanism, ...), JSON without floats.
    """

    name: str
    keys: tuple[str, ...]
    shards: int
    descriptor: Json


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """One incarnation of a stream as the ledger holds it.

    Attributes:
        stream_id: 128 random bits made with this incarnation; the noise key is derived with it.
        key_indices: index of each key, in the order of `keys`; an index belongs to its key for ever.
        descriptor: as given to `open_stream`.
        charge_id: the charge that paid for the noise.
    """

    name: str
    incarnation: int
    stream_id: bytes
    keys: tuple[str, ...]
    key_indices: tuple[int, ...]
    shards: int
    descriptor: Json
    scope: str
    charge_id: str

    def shard(self, shard: int) -> ShardRef:
        """The reference under which the releaser of shard `shard` works."""
        return ShardRef(self.name, self.incarnation, shard)

    def shard_keys(self, shard: int) -> tuple[int, ...]:
        """Ascending key indices of one shard: the rows every tick of it must have."""
        return tuple(sorted(i for i in self.key_indices if i % self.shards == shard))


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a charge.

    Attributes:
        charge_id: names the charge from now on.
        status: "reserved" or "committed".
        main: units charged to the scope's filter (nano-mu2, or nano-Renyi at the scope's order).
        epsilon: nano-epsilon taken from the scope's own-lines sub-budget.
        delta: atto-delta taken from the scope's own-lines sub-budget.
        expires_ms: the ledger server's clock after which an uncommitted reservation is void; 0 for none.
        body: the answer's canonical bytes; a retry with the same idempotency key returns these bytes.
    """

    charge_id: str
    status: str
    main: int
    epsilon: int
    delta: int
    expires_ms: int
    body: bytes


class ChargeRow(NamedTuple):
    """One append-only row of a scope's history; amounts are changes (negative where a charge expired)."""

    scope: str
    seq: int
    charge_id: str
    event: str
    principal: str
    line: str
    main: int
    epsilon: int
    delta: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at, and every contradiction it found, in words without secrets."""

    scopes: int
    charges: int
    shards: int
    releases: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when nothing was found."""
        return not self.problems


class LedgerStore(Protocol):
    """A durable, append-only ledger. All methods may be called from many threads.

    Every method raises ServiceUnavailable when the ledger cannot be reached or stays locked,
    StorageFull when a durable write fails, IntegrityError when stored rows contradict each other.
    When a method raises, nothing it was asked for has happened.
    """

    def create_scope(self, scope: Scope) -> ScopeStatus:
        """Create a scope; the same definition again is a no-op, another one is InvalidParameter."""
        ...

    def scope_status(self, name: str) -> ScopeStatus:
        """Definition, spend and cap of one scope. Raises InvalidParameter for an unknown name."""
        ...

    def scopes(self) -> list[ScopeStatus]:
        """Every scope, by name."""
        ...

    def quote(self, request: ChargeRequest) -> Receipt:
        """Dry run: the receipt `charge` would give now, with an empty charge_id. Changes nothing."""
        ...

    def reserve(self, request: ChargeRequest, ttl_ms: int) -> Receipt:
        """Admit a charge that may still expire, unless `commit_charge` comes within ttl_ms.

        Raises BudgetExceeded when it does not fit. It counts as spent until it has expired.
        """
        ...

    def commit_charge(self, charge_id: str, principal: str = "local") -> Receipt:
        """Make a reservation final, BEFORE its noise is drawn; again is a no-op. No refund after this.

        Raises Fenced when the reservation has expired.
        """
        ...

    def expire(self, charge_id: str | None = None, principal: str = "local") -> int:
        """Return undrawn reservations whose time is over (or the principal's named one, at once); how many.

        Raises InvalidParameter for a charge that is committed: nothing is refunded.
        """
        ...

    def charge(self, request: ChargeRequest) -> Receipt:
        """Reserve and commit in one transaction. Raises BudgetExceeded."""
        ...

    def charges(self, scope: str, after_seq: int = 0, limit: int = 1000) -> list[ChargeRow]:
        """History of a scope in order."""
        ...

    def open_stream(self, stream: StreamRecord, charge: ChargeRequest) -> OpenedStream:
        """Pay for and create a new incarnation, in one transaction.

        The incarnation number comes from a durable counter and is never used again, not even after a
        failed start; the 128-bit stream id is drawn here.

        Raises:
            BudgetExceeded: the scope's filter does not admit the charge.
            InvalidParameter: unknown scope, bad name, duplicate keys, floats in the descriptor.
        """
        ...

    def find_stream(self, name: str, incarnation: int | None = None) -> OpenedStream | None:
        """The latest incarnation (or the given one) of a stream, None where there is none."""
        ...

    def streams(self) -> list[OpenedStream]:
        """The latest incarnation of every stream, by name."""
        ...

    def acquire(self, shard: ShardRef, holder: str) -> int:
        """Become the one releaser of a shard: a durable fencing epoch, strictly increasing."""
        ...

    def head(self, shard: ShardRef) -> Head:
        """Where a shard stands. Raises IntegrityError when the head row was altered."""
        ...

    def commit_ticks(
        self, shard: ShardRef, epoch: int, first: int, rows: Sequence[ReleaseRow], last: int, sealed: bytes
    ) -> Head:
        """Make ticks first..last real, in one durable transaction; returns the new head.

        Args:
            shard: the shard.
            epoch: the caller's fencing epoch.
            first: first tick, head.t + 1.
            rows: for each tick in order exactly one row for each key of the shard, ascending by key_index.
            last: last tick.
            sealed: sealed state after `last`; replaces the shard's former one.

        Raises:
            Fenced: another holder has acquired the shard.
            IntegrityError: head.t != first - 1, or the rows do not cover the ticks and keys exactly.
        """
        ...

    def releases(self, shard: ShardRef, after_t: int, limit: int) -> list[ReleaseRow]:
        """Committed rows with t > after_t by (t, key_index); at most `limit` rows, cut at whole ticks.

        At least one whole tick is returned where one exists. The outbox is
        `releases(shard, head.published_t, limit)`. Raises IntegrityError for rows already folded.
        """
        ...

    def chain_at(self, shard: ShardRef, t: int) -> bytes:
        """The chain after tick t, the anchor published with that tick's rows."""
        ...

    def check_anchor(self, shard: ShardRef, t: int, chain: bytes | None = None) -> None:
        """Compare with what is public. Raises IntegrityError when the public side is ahead of the ledger.

        A published anchor `chain` must be the chain the ledger holds for tick t.
        """
        ...

    def mark_published(self, shard: ShardRef, epoch: int, t: int, mark: int) -> None:
        """Record that rows up to t are durable in the sink, whose position is now `mark`.

        Never moves back in t. Raises Fenced, or IntegrityError for t > head.t.
        """
        ...

    def fold(self, shard: ShardRef, epoch: int, through_t: int) -> int:
        """Fold published rows with t <= through_t into the shard's checkpoint; returns rows removed."""
        ...

    def verify(self) -> VerifyReport:
        """Walk everything: chains, contiguity, key cover, recomputed costs, spend <= cap on every prefix."""
        ...

    def close(self) -> None:
        """Release files and connections; again is a no-op."""
        ...
