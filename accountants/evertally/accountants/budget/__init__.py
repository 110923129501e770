"""The budget: scopes with a cap, charges recomputed from public parameters, and the ledger stores.

`open_ledger` opens the SQLite or PostgreSQL store; `LedgerStore` is what both implement.
"""

from evertally.accountants.budget.amounts import mu_of_units
from evertally.accountants.budget.charges import ChargeRequest, Cost, cost
from evertally.accountants.budget.counter_loss import CounterParameters, counter_grid, fit_counter
from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.lines import CounterLine, GaussianLine, KeySelectionLine, WindowsLine
from evertally.accountants.budget.opening import open_ledger
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
from evertally.accountants.budget.scopes import STATEMENT, Caps, Scope, ScopeStatus
from evertally.accountants.budget.training import TrainingLine

__all__ = [
    "Caps",
    "ChargeRequest",
    "ChargeRow",
    "Cost",
    "CounterLine",
    "CounterParameters",
    "GaussianLine",
    "Head",
    "KeySelectionLine",
    "LedgerStore",
    "OpenedStream",
    "Receipt",
    "ReleaseRow",
    "STATEMENT",
    "Scope",
    "ScopeStatus",
    "ShardRef",
    "StreamRecord",
    "TrainingLine",
    "VerifyReport",
    "WindowsLine",
    "cost",
    "counter_grid",
    "fit_counter",
    "mu_of_units",
    "open_ledger",
]
