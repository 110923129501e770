"""/v1/leases: one planned training run, its budget, its holder and its cap on steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from evertally.accountants.budget.canonical import name
from evertally.accountants.budget.service.answers import LeaseOut
from evertally.accountants.budget.service.api import Caller, IdempotencyKey, State, request_of
from evertally.accountants.budget.service.grants import Principal, authorize
from evertally.accountants.budget.service.leases import Lease, check_holder
from evertally.accountants.budget.service.schemas import (
    AcquireIn,
    HolderIn,
    LeaseIn,
    ParticipationIn,
    RenewIn,
)
from evertally.accountants.budget.service.state import ServiceState
from evertally.errors import InvalidParameter

__all__ = ["lease_router"]

lease_router = APIRouter(prefix="/v1/leases", tags=["leases"])


@lease_router.post("", status_code=201, summary="Reserve a planned run", response_model=LeaseOut)
async def create_lease(
    body: LeaseIn, caller: Caller, state: State, idempotency_key: IdempotencyKey = ""
) -> Response:
    """Reserve the whole planned run. The answer's epoch is the first holder's."""
    authorize(caller, "scope", body.scope, "lease")
    steps_max = _planned_steps(body.line.participation)

    def work() -> Lease:
        request = request_of(body, caller, idempotency_key)
        receipt = state.ledger.reserve(request, body.ttl_ms)
        lease = Lease(
            receipt.charge_id,
            *(caller.name, body.scope, "reserved", 1, steps_max, 0, body.manifest_digest),
            receipt.expires_ms,
            b"",
        )
        answer = LeaseOut.of(lease, request.line.to_json()).model_dump_json().encode()
        return state.leases.open(Lease(*_fields(lease), answer))

    lease = await state.workers.run(work, heavy=True)
    return Response(lease.body, 201, media_type="application/json")


@lease_router.get("/{lease_id}", summary="Read a lease")
async def read_lease(lease_id: str, caller: Caller, state: State) -> LeaseOut:
    """Where a lease of yours stands."""
    return await _on_lease(state, caller, lease_id, lambda lease: lease)


@lease_router.post("/{lease_id}/acquire", summary="Take a lease over")
async def acquire_lease(lease_id: str, body: AcquireIn, caller: Caller, state: State) -> LeaseOut:
    """A new epoch: whoever held the lease before is refused from now on."""
    return await _on_lease(
        state, caller, lease_id, lambda _: state.leases.acquire(lease_id, caller.name, body.manifest_digest)
    )


@lease_router.post("/{lease_id}/renew", summary="Confirm the holder; the first time, commit the budget")
async def renew_lease(lease_id: str, body: RenewIn, caller: Caller, state: State) -> LeaseOut:
    """Call it before the first noise is drawn: from then on the whole planned run is spent."""

    def change(lease: Lease) -> Lease:
        check_holder(lease, body.epoch)
        state.ledger.commit_charge(lease_id, caller.name)  # the ledger's word for it, each time
        return state.leases.renew(lease_id, caller.name, body.epoch, body.steps_done)

    return await _on_lease(state, caller, lease_id, change)


@lease_router.post("/{lease_id}/close", summary="End a lease")
async def close_lease(lease_id: str, body: HolderIn, caller: Caller, state: State) -> LeaseOut:
    """Returns the budget where the run was never begun; nothing is refunded otherwise."""

    def change(lease: Lease) -> Lease:
        closed = state.leases.close(lease_id, caller.name, body.epoch)
        if lease.status == "reserved":
            with contextlib.suppress(InvalidParameter):  # begun meanwhile: spent, nothing is refunded
                state.ledger.expire(lease_id, caller.name)
        return closed

    return await _on_lease(state, caller, lease_id, change)


async def _on_lease(
    state: ServiceState, caller: Principal, lease_id: str, change: Callable[[Lease], Lease]
) -> LeaseOut:
    name("lease_id", lease_id)

    def work() -> LeaseOut:
        lease = state.leases.get(lease_id, caller.name)
        authorize(caller, "scope", lease.scope, "lease")
        line = state.ledger.charge_of(lease_id, caller.name).line
        return LeaseOut.of(change(lease), line.to_json())

    return await state.workers.run(work)


def _planned_steps(participation: ParticipationIn) -> int:
    """Rows of the planned run, from its public parameters."""
    given = participation.model_dump()
    counts = [given.get(key) for key in (("rows",) if "rows" in given else ("batches", "epochs"))]
    steps = 1
    for count in counts:
        if not isinstance(count, int):
            raise InvalidParameter("line.participation", "no number of steps", "batches and epochs, or rows")
        steps *= count
    if steps >= 2**62:
        raise InvalidParameter("line.participation", "too many steps", "fewer than 2^62 steps")
    return steps


def _fields(lease: Lease) -> tuple[str, str, str, str, int, int, int, str, int]:
    return (
        *(lease.lease_id, lease.principal, lease.scope, lease.status),
        *(lease.epoch, lease.steps_max, lease.steps_done, lease.manifest_digest, lease.expires_ms),
    )
