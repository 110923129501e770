"""The ledger's seam: what may be released is decided here, and one transaction makes a release real.

A stream is opened with one charge, its ticks are committed by the one fenced releaser of each shard,
and everything published is read back from here. Two stores stand behind this protocol (SQLite and
PostgreSQL) and one conformance suite runs on both. The store never decodes a sealed blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evertally.accountants.budget.charges import ChargeRequest
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
from evertally.accountants.budget.scopes import Scope, ScopeStatus
from evertally.errors import EvertallyError

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


class LedgerStore(Protocol):
    """A durable, append-only ledger. All methods may be called from many threads.

    Every method raises ServiceUnavailable when the ledger cannot be reached or stays locked,
    StorageFull when a durable write fails, IntegrityError when stored rows contradict each other.
    When a method raises, nothing it was asked for has happened; only where a server or a disk failed
    inside the commit itself may it have, and then the next read, or a retry, tells.
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
        """Dry run: the receipt `charge` would give now, with an empty charge_id.

        Reservations that have lapsed are returned first, as before a charge; nothing else changes.
        """
        ...

    def reserve(self, request: ChargeRequest, ttl_ms: int) -> Receipt:
        """Admit a charge that may still expire, unless `commit_charge` comes within ttl_ms.

        A repeated idempotency key with the same content returns the first grant's bytes. A refusal is not
        kept: the same request again is a new question, which later room may answer with a grant.

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

    def record_all(
        self, wishes: Sequence[tuple[ChargeRequest, int | None]]
    ) -> list[Receipt | EvertallyError]:
        """Decide many charges at once, each as `charge` (None) or `reserve` (its ttl_ms) would.

        The answers stand in the wishes' order; a refusal, or the reason why there is none, in its place.
        """
        ...

    def charge_of(self, charge_id: str, principal: str = "local") -> ChargeRequest:
        """What a charge of this principal pays for. Raises InvalidParameter for any other id."""
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

    def quote_horizon(self, stream: str, incarnation: int, slack_horizon: int) -> Receipt:
        """Dry run of `extend_horizon`: what it would charge now. Changes nothing."""
        ...

    def extend_horizon(self, stream: str, incarnation: int, slack_horizon: int) -> Receipt:
        """Pay for the slack of more ticks of a counter, before any of them is released.

        The line's mu rises to what the same noise costs at the larger horizon; the difference is charged,
        and nothing is drawn. The horizon that is paid for already costs nothing: a retry is a no-op.

        Raises:
            BudgetExceeded: the scope does not admit the difference; the horizon stays.
            InvalidParameter: an unknown stream, an earlier horizon, one beyond the mechanism's.
            UnsupportedMechanism: the stream's line is no counter.
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
            UnsupportedMechanism: `last` lies past the slack horizon that the stream has paid for.
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
