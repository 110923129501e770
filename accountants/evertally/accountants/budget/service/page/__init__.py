"""The read-only page: scopes, charges and live totals, rendered on the server, without a script."""

from evertally.accountants.budget.service.page.routes import page_router

__all__ = ["page_router"]
