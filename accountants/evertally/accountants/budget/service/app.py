"""The application: routes, errors as problems, and the guard around them."""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from evertally.accountants.budget.ledger import LedgerStore
from evertally.accountants.budget.service.access import Access, Workers
from evertally.accountants.budget.service.admissions import Admissions
from evertally.accountants.budget.service.api import charge_router, router
from evertally.accountants.budget.service.direct import direct_apps
from evertally.accountants.budget.service.guard import Guard
from evertally.accountants.budget.service.health import health_router
from evertally.accountants.budget.service.lease_api import lease_router
from evertally.accountants.budget.service.leases import LeaseStore
from evertally.accountants.budget.service.openapi import publish
from evertally.accountants.budget.service.page import page_router
from evertally.accountants.budget.service.problems import (
    Problem,
    Refusal,
    problem_of,
    problem_of_body,
    response_of,
)
from evertally.accountants.budget.service.settings import ServiceSettings
from evertally.accountants.budget.service.state import ServiceState
from evertally.accountants.budget.service.tables import ServiceTables
from evertally.accountants.budget.service.telemetry import Telemetry
from evertally.accountants.budget.service.tokens import TokenStore
from evertally.errors import EvertallyError

__all__ = ["create_app"]


def create_app(
    ledger: LedgerStore, location: str | Path, settings: ServiceSettings
) -> tuple[Guard, ServiceState]:
    """The ASGI application over an open ledger, and the state to close after it.

    Args:
        ledger: decides and records; it is closed with the state.
        location: the same ledger's location, where the service keeps its tokens and leases.
        settings: limits and doors.
    """
    tables, workers, telemetry = ServiceTables(location), Workers(settings.workers), Telemetry()
    access = Access(TokenStore(tables), workers, certificates=bool(settings.client_ca))
    state = ServiceState(
        ledger, tables, LeaseStore(tables), access, workers, Admissions(ledger), telemetry, settings
    )
    app = FastAPI(openapi_url="/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = state
    for routes in (charge_router, router, lease_router, health_router):
        app.include_router(routes)
    if settings.page != "off":
        app.include_router(page_router(settings))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(EvertallyError, _error)
    publish(app, version("evertally"))
    return Guard(app, access, settings, telemetry, direct_apps(app, charge_router.routes)), state


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return response_of(error.problem)


async def _error(_: Request, error: Exception) -> Response:
    assert isinstance(error, EvertallyError)
    return response_of(problem_of(error))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return response_of(problem_of_body(error.errors()[0]))


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    code = {
        HTTPStatus.NOT_FOUND: "not_found",
        HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
    }.get(HTTPStatus(error.status_code), "malformed_request")
    return response_of(Problem(code, str(error.detail)[:256], headers=headers))
