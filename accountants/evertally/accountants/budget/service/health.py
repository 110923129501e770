"""Probes and metrics. Liveness asks nothing of the ledger; readiness does."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response

from evertally.accountants.budget.service.api import State
from evertally.accountants.budget.service.grants import authorize
from evertally.accountants.budget.service.local import check_local
from evertally.accountants.budget.service.state import ServiceState
from evertally.errors import EvertallyError

__all__ = ["health_router"]

health_router = APIRouter(tags=["operations"])
_PROBE = "readiness-probe"


class Health(BaseModel):
    """A probe's answer."""

    status: str = "ok"


@health_router.get("/healthz", summary="Liveness")
async def healthz() -> Health:
    """The process answers."""
    return Health()


@health_router.get("/readyz", summary="Readiness")
async def readyz(state: State) -> Health:
    """The ledger can be read and the service is not shutting down; 503 otherwise."""
    await _look(state)
    return Health()


@health_router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request, state: State) -> Response:
    """Operators' plane: to local callers of a service on loopback, else to holders of the verb operate."""
    if state.settings.open_locally:
        check_local(request)
    else:
        authorize(await state.access.of_request(request.scope), "service", "metrics", "operate")
    with contextlib.suppress(EvertallyError):  # its metric says so; nobody may be asking for /readyz
        await _look(state)
    return Response(state.telemetry.text(), media_type=CONTENT_TYPE_LATEST)


async def _look(state: ServiceState) -> None:
    """Read the ledger, and keep for the metrics whether it answered."""
    try:
        await state.workers.run(lambda: state.ledger.find_stream(_PROBE))
    except EvertallyError:
        state.telemetry.ledger_up.set(0)
        raise
    state.telemetry.ledger_up.set(1)
