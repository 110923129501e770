"""Leases of training runs: a reservation of the whole planned run, a fencing epoch and a cap on steps.

A lease is the right to run steps 0 .. steps_max-1 of one planned run, in order. Its budget is reserved
when it is made, becomes final with the first `renew` (which comes before the first noise is drawn) and
is never refunded after that. Taking a lease over raises its epoch; a stale holder is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evertally.accountants.budget.service.tables import ServiceTables
from evertally.accountants.budget.sql import Transaction
from evertally.errors import Fenced, InvalidParameter

__all__ = ["Lease", "LeaseStore"]

_COLUMNS: Final = (
    "lease_id, principal, scope, status, epoch, steps_max, steps_done, manifest_digest, expires_ms, body"
)


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease; its id is the id of the charge that pays for it.

    Attributes:
        status: "reserved", "active" or "closed".
        epoch: the current holder's fencing epoch, from 1.
        steps_max: steps of the planned run.
        steps_done: highest number of steps reported.
        manifest_digest: keyed digest of the training data's manifest, "" where none was given.
        expires_ms: when the reservation lapses unless it is renewed once.
        body: first answer's bytes.
    """

    lease_id: str
    principal: str
    scope: str
    status: str
    epoch: int
    steps_max: int
    steps_done: int
    manifest_digest: str
    expires_ms: int
    body: bytes


class LeaseStore:
    """Durable leases."""

    def __init__(self, tables: ServiceTables) -> None:
        self._tables = tables

    def open(self, lease: Lease) -> Lease:
        """Store a new lease, or return the one this charge already has (a retried request).

        Raises InvalidParameter where that one was made for another manifest.
        """

        def work(tx: Transaction) -> Lease:
            known = _find(tx, lease.lease_id)
            if known is not None and known.manifest_digest != lease.manifest_digest:
                raise InvalidParameter(
                    "idempotency_key", "another manifest", "a new key: this one was used for another request"
                )
            if known is not None:
                return known
            tx.run(
                f"INSERT INTO service_lease ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608  # nosec B608  # literals
                *(lease.lease_id, lease.principal, lease.scope, lease.status, lease.epoch, lease.steps_max),
                *(lease.steps_done, lease.manifest_digest, lease.expires_ms, lease.body),
            )
            return lease

        return self._tables.write(work, _lock(lease.lease_id))

    def get(self, lease_id: str, principal: str) -> Lease:
        """One lease of this principal. Raises InvalidParameter for any other id."""
        return self._tables.read(lambda tx: _owned(tx, lease_id, principal))

    def acquire(self, lease_id: str, principal: str, manifest_digest: str) -> Lease:
        """Take the lease over under a new epoch.

        Raises:
            Fenced: the lease is closed.
            InvalidParameter: another manifest than the one the lease was made for.
        """

        def work(tx: Transaction) -> Lease:
            lease = _open(_owned(tx, lease_id, principal))
            if lease.manifest_digest != manifest_digest:
                raise InvalidParameter(
                    "manifest_digest", manifest_digest, "the digest of the manifest this lease was made for"
                )
            tx.run("UPDATE service_lease SET epoch = epoch + 1 WHERE lease_id = ?", lease_id)
            return _owned(tx, lease_id, principal)

        return self._tables.write(work, _lock(lease_id))

    def renew(self, lease_id: str, principal: str, epoch: int, steps_done: int) -> Lease:
        """Confirm the holder and record progress. Call it after the charge was committed.

        Raises:
            Fenced: another epoch holds the lease, or it is closed.
            InvalidParameter: steps beyond the plan, or fewer than reported before.
        """

        def work(tx: Transaction) -> Lease:
            lease = _held(_owned(tx, lease_id, principal), epoch)
            if not lease.steps_done <= steps_done <= lease.steps_max:
                raise InvalidParameter("steps_done", steps_done, f"{lease.steps_done} to {lease.steps_max}")
            tx.run(
                "UPDATE service_lease SET status = 'active', steps_done = ? WHERE lease_id = ?",
                *(steps_done, lease_id),
            )
            return _owned(tx, lease_id, principal)

        return self._tables.write(work, _lock(lease_id))

    def close(self, lease_id: str, principal: str, epoch: int) -> Lease:
        """End the lease; again is a no-op. Raises Fenced for a stale holder."""

        def work(tx: Transaction) -> Lease:
            lease = _owned(tx, lease_id, principal)
            if lease.status != "closed" or lease.epoch != epoch:
                _held(lease, epoch)
                tx.run("UPDATE service_lease SET status = 'closed' WHERE lease_id = ?", lease_id)
            return _owned(tx, lease_id, principal)

        return self._tables.write(work, _lock(lease_id))


def check_holder(lease: Lease, epoch: int) -> None:
    """Raise Fenced where `epoch` does not hold the lease, before its charge is touched."""
    _held(lease, epoch)


def _lock(lease_id: str) -> str:
    return f"service/lease/{lease_id}"


def _find(tx: Transaction, lease_id: str) -> Lease | None:
    found = tx.rows(f"SELECT {_COLUMNS} FROM service_lease WHERE lease_id = ?", lease_id)  # noqa: S608  # nosec B608  # literals
    if not found:
        return None
    *text, epoch, steps_max, steps_done, manifest_digest, expires_ms, body = found[0]
    lease_id, principal, scope, status = text
    return Lease(
        *(lease_id, principal, scope, status, epoch, steps_max, steps_done, manifest_digest, expires_ms),
        body=bytes(body),
    )


def _owned(tx: Transaction, lease_id: str, principal: str) -> Lease:
    lease = _find(tx, lease_id)
    if lease is None or lease.principal != principal:
        raise InvalidParameter("lease_id", lease_id[:64], "a lease of this principal")
    return lease


def _open(lease: Lease) -> Lease:
    if lease.status == "closed":
        raise Fenced("the lease is closed")
    return lease


def _held(lease: Lease, epoch: int) -> Lease:
    _open(lease)
    if lease.epoch != epoch:
        raise Fenced("another holder has taken this lease over")
    return lease
