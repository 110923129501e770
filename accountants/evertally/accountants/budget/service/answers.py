"""What the service answers, typed for OpenAPI and for readers."""

from __future__ import annotations

from pydantic import BaseModel, Field

from evertally.accountants.budget.ledger import ChargeRow, Head, OpenedStream
from evertally.accountants.budget.scopes import STATEMENT, Caps, ScopeStatus
from evertally.accountants.budget.service.leases import Lease

__all__ = [
    "ChargeRowOut",
    "ExpiredOut",
    "FitOut",
    "LeaseOut",
    "ProblemOut",
    "ReceiptOut",
    "ScopeOut",
    "ShardOut",
    "StreamOut",
]


class CapsOut(BaseModel):
    """Amounts in integer units: the filter's, nano-epsilon and atto-delta of lines of their own."""

    main: int
    epsilon: int
    delta: int

    @classmethod
    def of(cls, caps: Caps) -> CapsOut:
        """From the ledger's type."""
        return cls(main=caps.main, epsilon=caps.epsilon, delta=caps.delta)


class ScopeOut(BaseModel):
    """A scope with what is spent."""

    name: str
    unit: str
    adjacency: str
    epsilon_cap: str
    delta_cap: str
    delta_lines: str
    epsilon_lines: str
    filter: str
    order: str | None
    disjoint: list[str]
    renews: str
    main_unit: str = Field(description="Unit of cap.main, spent.main and remaining.main.")
    cap: CapsOut
    spent: CapsOut = Field(description=STATEMENT)
    remaining: CapsOut = Field(description=STATEMENT)
    zcdp_main: int | None = Field(description="What the looser zCDP conversion would allow, for comparison.")
    rows: int
    chain: str = Field(description="Head of the scope's hash chain, hexadecimal.")
    statement: str = STATEMENT

    @classmethod
    def of(cls, status: ScopeStatus) -> ScopeOut:
        """From the ledger's type."""
        scope, caps, spent = status.scope, status.caps, status.spent
        left = Caps(caps.main - spent.main, caps.epsilon - spent.epsilon, caps.delta - spent.delta)
        return cls(
            name=scope.name,
            unit=scope.unit,
            adjacency=scope.adjacency,
            epsilon_cap=str(scope.epsilon_cap),
            delta_cap=str(scope.delta_cap),
            delta_lines=str(scope.delta_lines),
            epsilon_lines=str(scope.epsilon_lines),
            filter=scope.filter,
            order=None if scope.order is None else str(scope.order),
            disjoint=list(scope.disjoint),
            renews=scope.renews,
            main_unit=scope.main_unit,
            cap=CapsOut.of(caps),
            spent=CapsOut.of(spent),
            remaining=CapsOut.of(left),
            zcdp_main=scope.zcdp_main() if scope.filter == "gaussian" else None,
            rows=status.rows,
            chain=status.chain.hex(),
        )


class ReceiptOut(BaseModel):
    """The answer to a charge; `main` is in the scope's main unit."""

    charge_id: str = Field(description="Empty for a quote.")
    status: str = Field(description="quote, reserved or committed")
    scope: str
    seq: int
    main: int
    epsilon: int = Field(description="nano-epsilon taken from the lines' sub-budget")
    delta: int = Field(description="atto-delta taken from the lines' sub-budget")
    expires_ms: int = Field(description="0 where it never expires")


class ExpiredOut(BaseModel):
    """What became of a reservation that was given back."""

    charge_id: str
    expired: bool = Field(description="false where it had expired before")


class ChargeRowOut(BaseModel):
    """One row of a scope's append-only history; amounts are changes."""

    seq: int
    charge_id: str
    event: str
    principal: str
    line: str = Field(description="The request's canonical JSON; empty for later events of a charge.")
    main: int
    epsilon: int
    delta: int
    at_ms: int

    @classmethod
    def of(cls, row: ChargeRow) -> ChargeRowOut:
        """From the ledger's type."""
        return cls(**{name: value for name, value in row._asdict().items() if name != "scope"})


class FitOut(BaseModel):
    """A line with the least noise that fits, and what it would cost now."""

    line: dict[str, object]
    quote: ReceiptOut


class ShardOut(BaseModel):
    """Where the published side of a shard stands."""

    shard: int
    t: int = Field(description="Last published tick, 0 before the first.")
    tick_end_ms: int | None = Field(description="End of that tick, the only public time.")


class StreamOut(BaseModel):
    """Public facts of a stream; released values never travel through this interface."""

    name: str
    incarnation: int
    keys: int = Field(description="Number of declared keys.")
    shards: list[ShardOut]
    descriptor: dict[str, object]
    scope: str | None = Field(description="Absent where you may not see the scope.")

    @classmethod
    def of(cls, opened: OpenedStream, heads: list[Head], *, scope_visible: bool) -> StreamOut:
        """From the ledger's types."""
        descriptor = {
            key: value for key, value in opened.descriptor.items() if scope_visible or key != "scope"
        }
        start, tick = opened.descriptor.get("start_ms"), opened.descriptor.get("tick_ms")
        timed = isinstance(start, int) and isinstance(tick, int)
        return cls(
            name=opened.name,
            incarnation=opened.incarnation,
            keys=len(opened.keys),
            shards=[
                ShardOut(
                    shard=shard,
                    t=head.published_t,
                    tick_end_ms=start + head.published_t * tick if timed and head.published_t else None,  # type: ignore[operator]  # integers, checked
                )
                for shard, head in enumerate(heads)
            ],
            descriptor=descriptor,
            scope=opened.scope if scope_visible else None,
        )


class LeaseOut(BaseModel):
    """A training run's lease."""

    lease_id: str
    charge_id: str
    scope: str
    status: str = Field(description="reserved, active or closed")
    epoch: int = Field(description="Fencing epoch of the current holder.")
    steps_max: int
    steps_done: int
    expires_ms: int = Field(description="When the reservation lapses unless it is renewed; 0 once active.")
    line: dict[str, object] = Field(
        description="The planned run that is charged, with every number of its strategy: run this one."
    )

    @classmethod
    def of(cls, lease: Lease, line: dict[str, object]) -> LeaseOut:
        """From the store's types."""
        return cls(
            lease_id=lease.lease_id,
            charge_id=lease.lease_id,
            scope=lease.scope,
            status=lease.status,
            epoch=lease.epoch,
            steps_max=lease.steps_max,
            steps_done=lease.steps_done,
            expires_ms=lease.expires_ms if lease.status == "reserved" else 0,
            line=line,
        )


class ProblemOut(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable; see the reference of codes.")
    field: str
    received: str
    allowed: str
