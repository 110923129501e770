"""The budget service: /v1 over HTTP, tokens, leases, and a read-only page.

`serve_ledger` runs one process; `create_app` is its ASGI application.
"""

from evertally.accountants.budget.service.app import create_app
from evertally.accountants.budget.service.grants import VERBS, Grant, Principal
from evertally.accountants.budget.service.server import serve_ledger
from evertally.accountants.budget.service.settings import PAGE_MODES, ServiceSettings
from evertally.accountants.budget.service.tables import ServiceTables
from evertally.accountants.budget.service.tokens import Credential, TokenStore

__all__ = [
    "PAGE_MODES",
    "VERBS",
    "Credential",
    "Grant",
    "Principal",
    "ServiceSettings",
    "ServiceTables",
    "TokenStore",
    "create_app",
    "serve_ledger",
]
