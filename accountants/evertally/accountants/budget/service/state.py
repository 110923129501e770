"""What the routes share: the ledger, the service's tables, its threads and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.service.access import Access, Workers
from evertally.accountants.budget.service.admissions import Admissions
from evertally.accountants.budget.service.leases import LeaseStore
from evertally.accountants.budget.service.settings import ServiceSettings
from evertally.accountants.budget.service.tables import ServiceTables
from evertally.accountants.budget.service.telemetry import Telemetry

__all__ = ["ServiceState"]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One running service."""

    ledger: LedgerStore
    tables: ServiceTables
    leases: LeaseStore
    access: Access
    workers: Workers
    admissions: Admissions
    telemetry: Telemetry
    settings: ServiceSettings

    def close(self) -> None:
        """Wait for the threads, then release the ledger."""
        self.admissions.close()
        self.workers.close()
        self.tables.close()
        self.ledger.close()
