"""The lease of a run: the whole plan is paid for before its first draw, by one holder at a time.

`BudgetClient` offers these calls over HTTP; `LocalBudget` offers the same over a ledger on this machine,
with the service's own lease table, so that both fence in one way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.client import LeaseGrant
from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.loss import Line
from evertally.accountants.budget.opening import open_ledger
from evertally.accountants.budget.scopes import Scope, ScopeStatus
from evertally.accountants.budget.training import TrainingLine
from evertally.errors import IntegrityError, InvalidParameter

__all__ = ["Budget", "LocalBudget", "lease_key"]

_PRINCIPAL: Final = "local"


class Budget(Protocol):
    """Who pays for a run: a budget service, or a ledger on this machine."""

    def create_scope(self, scope: Scope) -> ScopeStatus:
        """Create a scope; the equal definition again is a no-op."""
        ...

    def scope_status(self, name: str) -> ScopeStatus:
        """Definition, cap and spend of a scope."""
        ...

    def calibrate(self, scope: str, draft: Mapping[str, object], units: int | None = None) -> Line:
        """The line with the least noise that fits what remains."""
        ...

    def open_lease(self, request: ChargeRequest, ttl_ms: int, manifest_digest: str = "") -> LeaseGrant:
        """Reserve a planned run; a retry with the same key and content is the same lease."""
        ...

    def acquire_lease(self, lease_id: str, manifest_digest: str = "") -> LeaseGrant:
        """Become the holder under a new epoch; the former holder is refused from now on."""
        ...

    def renew_lease(self, lease_id: str, epoch: int, steps_done: int = 0) -> LeaseGrant:
        """Confirm the holder; the first call commits the budget. Raises Fenced."""
        ...

    def close_lease(self, lease_id: str, epoch: int) -> LeaseGrant:
        """End the lease. Raises Fenced."""
        ...

    def close(self) -> None:
        """Release connections; again is a no-op."""
        ...


class LocalBudget:
    """A `Budget` over a ledger that this machine opens itself.

    Args:
        location: path of a SQLite ledger, or a postgresql:// address.
        chain_key_file: the ledger's chain key, where it does not lie beside the ledger.
    """

    def __init__(self, location: str | Path, chain_key_file: Path | None = None) -> None:
        # the lease tables belong to the service, whose package loads its web framework
        from evertally.accountants.budget.service.leases import LeaseStore  # noqa: PLC0415 - see above
        from evertally.accountants.budget.service.tables import ServiceTables  # noqa: PLC0415 - as above

        self._ledger: Final[LedgerStore] = open_ledger(location, key_file=chain_key_file)
        try:
            self._tables: Final = ServiceTables(location)
        except BaseException:
            self._ledger.close()
            raise
        self._leases: Final = LeaseStore(self._tables)

    def create_scope(self, scope: Scope) -> ScopeStatus:
        """See `Budget`."""
        return self._ledger.create_scope(scope)

    def scope_status(self, name: str) -> ScopeStatus:
        """See `Budget`."""
        return self._ledger.scope_status(name)

    def calibrate(self, scope: str, draft: Mapping[str, object], units: int | None = None) -> Line:
        """See `Budget`."""
        from evertally.accountants.budget.service.fitting import fit  # noqa: PLC0415 - see __init__
        from evertally.accountants.budget.service.schemas import DraftIn  # noqa: PLC0415 - as above

        wanted = DraftIn.model_validate({"scope": scope, "line": dict(draft), "units": units})
        self._ledger.expire()  # what has lapsed remains as well
        return fit(self._ledger.scope_status(scope), wanted)

    def open_lease(self, request: ChargeRequest, ttl_ms: int, manifest_digest: str = "") -> LeaseGrant:
        """See `Budget`."""
        from evertally.accountants.budget.service.leases import Lease  # noqa: PLC0415 - see __init__

        if not isinstance(request.line, TrainingLine):
            raise InvalidParameter("line", request.line.kind, "a training run")
        rows = getattr(request.line.mechanism()[1], "rows", 0)
        receipt = self._ledger.reserve(request, ttl_ms)
        first = Lease(
            *(receipt.charge_id, _PRINCIPAL, request.scope, "reserved", 1, int(rows), 0),
            *(manifest_digest, receipt.expires_ms, b""),
        )
        self._leases.open(first)
        return self._grant(first)  # to a retry as well: who took the lease over meanwhile keeps it

    def acquire_lease(self, lease_id: str, manifest_digest: str = "") -> LeaseGrant:
        """See `Budget`."""
        return self._grant(self._leases.acquire(lease_id, _PRINCIPAL, manifest_digest))

    def renew_lease(self, lease_id: str, epoch: int, steps_done: int = 0) -> LeaseGrant:
        """See `Budget`."""
        from evertally.accountants.budget.service.leases import check_holder  # noqa: PLC0415 - see __init__

        lease = self._leases.get(lease_id, _PRINCIPAL)
        check_holder(lease, epoch)
        self._ledger.commit_charge(lease_id, _PRINCIPAL)  # the ledger's word for it, each time
        return self._grant(self._leases.renew(lease_id, _PRINCIPAL, epoch, steps_done))

    def close_lease(self, lease_id: str, epoch: int) -> LeaseGrant:
        """See `Budget`."""
        undrawn = self._leases.get(lease_id, _PRINCIPAL).status == "reserved"
        closed = self._leases.close(lease_id, _PRINCIPAL, epoch)
        if undrawn:
            with contextlib.suppress(InvalidParameter):  # begun meanwhile: spent, nothing is refunded
                self._ledger.expire(lease_id, _PRINCIPAL)
        return self._grant(closed)

    def close(self) -> None:
        """See `Budget`."""
        self._tables.close()
        self._ledger.close()

    def _grant(self, lease: Any) -> LeaseGrant:
        line = self._ledger.charge_of(lease.lease_id, _PRINCIPAL).line
        if not isinstance(line, TrainingLine):
            raise IntegrityError("a lease is bound to a charge that is no training run")
        return LeaseGrant(
            *(lease.lease_id, lease.scope, lease.status, lease.epoch, lease.steps_max, lease.steps_done),
            lease.expires_ms,
            line,
        )


def lease_key(plan_digest: str, manifest_digest: str, generation: int) -> str:
    """The idempotency key of a run's lease: a retried reservation is the first one, another run is not."""
    return f"train/{generation}/{plan_digest[:32]}/{manifest_digest[:32]}"
