"""/v1: scopes, quotes, charges, calibration and streams."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from evertally.accountants.budget.canonical import name
from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.ledger import OpenedStream, Receipt
from evertally.accountants.budget.lines import line_from_json
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.budget.service.access import PRINCIPAL
from evertally.accountants.budget.service.answers import (
    ChargeRowOut,
    ExpiredOut,
    FitOut,
    ReceiptOut,
    ScopeOut,
    StreamOut,
)
from evertally.accountants.budget.service.direct import DirectRoute
from evertally.accountants.budget.service.fitting import fit
from evertally.accountants.budget.service.grants import Principal, authorize
from evertally.accountants.budget.service.problems import Problem, Refusal
from evertally.accountants.budget.service.schemas import ChargeIn, DraftIn, QuoteIn, ScopeIn
from evertally.accountants.budget.service.state import ServiceState
from evertally.errors import BudgetExceeded, InvalidParameter

__all__ = ["Caller", "IdempotencyKey", "State", "charge_router", "receipt_response", "request_of", "router"]

router = APIRouter(prefix="/v1")
charge_router = APIRouter(prefix="/v1", route_class=DirectRoute)
"""What is asked often."""


async def _caller(request: Request) -> Principal:
    principal: Principal = request.scope[PRINCIPAL]
    return principal


async def _state(request: Request) -> ServiceState:
    state: ServiceState = request.app.state.service
    return state


Caller = Annotated[Principal, Depends(_caller)]
State = Annotated[ServiceState, Depends(_state)]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        description="1 to 128 letters, digits or ._:/-; a retry with the same key and body returns the "
        "first answer.",
    ),
]


@router.post("/scopes", status_code=201, tags=["scopes"], summary="Create a scope")
async def create_scope(body: ScopeIn, caller: Caller, state: State) -> ScopeOut:
    """Create a scope, or confirm that the equal one exists. A scope never changes."""
    authorize(caller, "scope", body.name, "create")
    scope = _scope_of(body)
    try:
        return ScopeOut.of(await state.workers.run(lambda: state.ledger.create_scope(scope)))
    except InvalidParameter as error:
        if error.field == "scope":
            raise Refusal(
                Problem("scope_exists", "a scope never changes", "name", body.name, error.expected)
            ) from None
        raise


@router.get("/scopes", tags=["scopes"], summary="List your scopes")
async def list_scopes(caller: Caller, state: State) -> list[ScopeOut]:
    """Every scope on which you hold the verb read, by name."""
    found = await state.workers.run(state.ledger.scopes)
    return [ScopeOut.of(status) for status in found if caller.allows("scope", status.scope.name, "read")]


@router.get("/scopes/{scope:path}", tags=["scopes"], summary="Read a scope")
async def read_scope(scope: str, caller: Caller, state: State) -> ScopeOut:
    """Definition, cap and spend of one scope. The guarantee is the cap, not what is spent so far."""
    authorize(caller, "scope", scope, "read")
    return ScopeOut.of(await state.workers.run(lambda: state.ledger.scope_status(scope)))


@charge_router.post("/quote", tags=["charges"], summary="Dry run of a charge", response_model=ReceiptOut)
async def quote(body: QuoteIn, caller: Caller, state: State) -> Response:
    """What the charge would cost now; 409 where it does not fit. Charges nothing."""
    authorize(caller, "scope", body.scope, "quote")
    receipt = await state.workers.run(
        lambda: state.ledger.quote(request_of(body, caller, "")), heavy=_heavy(body)
    )
    return receipt_response(receipt, 200)


@charge_router.post(
    "/charges", status_code=201, tags=["charges"], summary="Charge a scope", response_model=ReceiptOut
)
async def charge(
    body: ChargeIn, caller: Caller, state: State, idempotency_key: IdempotencyKey = ""
) -> Response:
    """Reserve a charge, or commit it at once. 409 budget_exceeded where it does not fit.

    A reservation counts as spent until it has expired; commit it before its noise is drawn.
    """
    authorize(caller, "scope", body.scope, "reserve", *(("commit",) if body.mode == "commit" else ()))

    ttl_ms = None if body.mode == "commit" else body.ttl_ms

    def work() -> Receipt:  # a training line computes for seconds before it can be decided
        request = request_of(body, caller, idempotency_key)
        return state.ledger.charge(request) if ttl_ms is None else state.ledger.reserve(request, ttl_ms)

    try:
        if _heavy(body):
            receipt = await state.workers.run(work, heavy=True)
        else:
            receipt = await state.admissions.admit(request_of(body, caller, idempotency_key), ttl_ms)
    except BudgetExceeded:
        state.telemetry.decisions.labels("refused").inc()
        raise
    state.telemetry.decisions.labels("granted").inc()
    return receipt_response(receipt, 201)


@router.post("/charges/{charge_id}/commit", tags=["charges"], summary="Commit", response_model=ReceiptOut)
async def commit(charge_id: str, caller: Caller, state: State) -> Response:
    """Make your reservation final, before its noise is drawn; again changes nothing. No refund after this."""
    name("charge_id", charge_id)

    def work() -> Receipt:
        scope = state.ledger.charge_of(charge_id, caller.name).scope
        authorize(caller, "scope", scope, "commit")
        return state.ledger.commit_charge(charge_id, caller.name)

    return receipt_response(await state.workers.run(work), 200)


@router.post("/charges/{charge_id}/expire", tags=["charges"], summary="Give a reservation back")
async def expire(charge_id: str, caller: Caller, state: State) -> ExpiredOut:
    """Return your undrawn reservation at once; 422 for a committed charge, nothing of which is refunded."""
    name("charge_id", charge_id)

    def work() -> int:
        scope = state.ledger.charge_of(charge_id, caller.name).scope
        authorize(caller, "scope", scope, "reserve")
        try:
            return state.ledger.expire(charge_id, caller.name)
        except InvalidParameter as error:
            problem = Problem(
                "invalid_parameter", "the charge is committed", "mode", "commit", error.expected
            )
            raise Refusal(problem) from None

    return ExpiredOut(charge_id=charge_id, expired=bool(await state.workers.run(work)))


@router.get("/charges", tags=["charges"], summary="A scope's history")
async def list_charges(
    caller: Caller,
    state: State,
    scope: Annotated[str, Query(max_length=128)],
    after_seq: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[ChargeRowOut]:
    """Append-only rows in order; ask again with the last seq for more."""
    authorize(caller, "scope", scope, "read")

    def work() -> list[ChargeRowOut]:
        state.ledger.scope_status(scope)  # 404 for a scope that is not there
        return [ChargeRowOut.of(row) for row in state.ledger.charges(scope, after_seq, limit)]

    return await state.workers.run(work)


@router.post("/calibrate", tags=["charges"], summary="The noise that fits")
async def calibrate(body: DraftIn, caller: Caller, state: State) -> FitOut:
    """The same line with the least noise whose charge fits what remains now. Charges nothing."""
    authorize(caller, "scope", body.scope, "quote")

    def work() -> FitOut:
        state.ledger.expire()  # what has lapsed remains as well
        status = state.ledger.scope_status(body.scope)
        line, scope = fit(status, body), status.scope
        receipt = state.ledger.quote(
            ChargeRequest(scope.name, scope.unit, scope.adjacency, line, principal=caller.name)
        )
        return FitOut(line=line.to_json(), quote=ReceiptOut(**json.loads(receipt.body)))

    return await state.workers.run(work, heavy=body.line.kind == "training")


@router.get("/streams", tags=["streams"], summary="List your streams")
async def list_streams(caller: Caller, state: State) -> list[StreamOut]:
    """Public facts of every stream on which you hold the verb read, by name."""

    def work() -> list[StreamOut]:
        return [
            _stream_out(state, caller, opened)
            for opened in state.ledger.streams()
            if caller.allows("stream", opened.name, "read")
        ]

    return await state.workers.run(work)


@router.get("/streams/{stream:path}", tags=["streams"], summary="Read a stream")
async def read_stream(stream: str, caller: Caller, state: State) -> StreamOut:
    """Public facts of a stream's latest incarnation. Released values never travel through this interface."""
    authorize(caller, "stream", stream, "read")

    def work() -> StreamOut:
        opened = state.ledger.find_stream(stream)
        if opened is None:
            raise Refusal(Problem("not_found", "there is no such resource, or none that you may see"))
        return _stream_out(state, caller, opened)

    return await state.workers.run(work)


def request_of(body: QuoteIn, caller: Principal, idempotency_key: str) -> ChargeRequest:
    """The ledger's request. Raises InvalidParameter for what the schema cannot know."""
    line = body.line.model_dump(exclude_unset=True)
    if idempotency_key:
        name("Idempotency-Key", idempotency_key)
    return ChargeRequest(
        scope=body.scope,
        unit=body.unit,
        adjacency=body.adjacency,
        line=line_from_json(line),
        group=body.group,
        members=tuple(body.members),
        principal=caller.name,
        idempotency_key=idempotency_key,
    )


def receipt_response(receipt: Receipt, status: int) -> Response:
    """The receipt's own bytes: a retry gets the first answer again, byte by byte."""
    return Response(receipt.body, status, media_type="application/json")


def _scope_of(body: ScopeIn) -> Scope:
    fields: dict[str, Any] = body.model_dump()
    return Scope(**{**fields, "disjoint": tuple(body.disjoint)})


def _stream_out(state: ServiceState, caller: Principal, opened: OpenedStream) -> StreamOut:
    heads = [state.ledger.head(opened.shard(shard)) for shard in range(opened.shards)]
    return StreamOut.of(opened, heads, scope_visible=caller.sees("scope", opened.scope))


def _heavy(body: QuoteIn) -> bool:
    return body.line.kind == "training"
