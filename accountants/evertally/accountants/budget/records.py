"""What a ledger holds and answers with: references, rows, heads, streams, receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "ChargeRow",
    "Head",
    "OpenedStream",
    "Receipt",
    "ReleaseRow",
    "ShardRef",
    "StreamRecord",
    "VerifyReport",
]

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ShardRef:
    """One shard of one incarnation of a stream: the unit that one releaser holds."""

    stream: str
    incarnation: int
    shard: int


class ReleaseRow(NamedTuple):
    """One released total: what is published, nothing else.

    Attributes:
        key_index: the key's index in the ledger, stable for ever.
        t: the tick, from 1.
        value: the noisy total, an integer of any size.
        stderr: the standard error as published, decimal text.
        tick_end_ms: the tick's end, epoch milliseconds, the only public timestamp.
    """

    key_index: int
    t: int
    value: int
    stderr: str
    tick_end_ms: int


@dataclass(frozen=True, slots=True)
class Head:
    """Where a shard stands.

    Attributes:
        t: last committed tick, 0 before the first.
        epoch: the current fencing epoch, 0 before the first `acquire`.
        sealed: the releaser's sealed state after tick t, None before the first commit.
        chain: hash chain over all rows up to t, the anchor to publish with them.
        published_t: last tick marked published.
        published_mark: position of the sink after that tick (a file's byte length).
        folded_t: rows up to here are folded into the checkpoint.
    """

    t: int
    epoch: int
    sealed: bytes | None = field(repr=False)
    chain: bytes
    published_t: int
    published_mark: int
    folded_t: int = 0


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream to be opened.

    Attributes:
        name: the stream's name.
        keys: the declared keys in their declared order.
        shards: number of shards; the key with index i belongs to shard i mod shards.
        descriptor: public parameters (tick, start, clip, unit, mechanism, ...), JSON without floats.
    """

    name: str
    keys: tuple[str, ...]
    shards: int
    descriptor: Json


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """One incarnation of a stream as the ledger holds it.

    Attributes:
        stream_id: 128 random bits made with this incarnation; the noise key is derived with it.
        key_indices: index of each key, in the order of `keys`; an index belongs to its key for ever.
        descriptor: as given to `open_stream`.
        charge_id: the charge that paid for the noise.
        slack_horizon: last tick that is paid for, extensions included; None where the line is no counter.
    """

    name: str
    incarnation: int
    stream_id: bytes
    keys: tuple[str, ...]
    key_indices: tuple[int, ...]
    shards: int
    descriptor: Json
    scope: str
    charge_id: str
    slack_horizon: int | None = None

    def shard(self, shard: int) -> ShardRef:
        """The reference under which the releaser of shard `shard` works."""
        return ShardRef(self.name, self.incarnation, shard)

    def shard_keys(self, shard: int) -> tuple[int, ...]:
        """Ascending key indices of one shard: the rows every tick of it must have."""
        return tuple(sorted(i for i in self.key_indices if i % self.shards == shard))


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a charge.

    Attributes:
        charge_id: names the charge from now on.
        status: "reserved" or "committed"; "quote" for a dry run.
        main: units charged to the scope's filter (nano-mu2, or nano-Renyi at the scope's order).
        epsilon: nano-epsilon taken from the scope's own-lines sub-budget.
        delta: atto-delta taken from the scope's own-lines sub-budget.
        expires_ms: the ledger server's clock after which an uncommitted reservation is void; 0 for none.
        body: the answer's canonical bytes; a retry with the same idempotency key returns these bytes.
    """

    charge_id: str
    status: str
    main: int
    epsilon: int
    delta: int
    expires_ms: int
    body: bytes


class ChargeRow(NamedTuple):
    """One append-only row of a scope's history; amounts are changes (negative where a charge expired).

    `event` is "reserved", "committed", "expired" or "extended" (the line from now on is `line`).
    """

    scope: str
    seq: int
    charge_id: str
    event: str
    principal: str
    line: str
    main: int
    epsilon: int
    delta: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at, and every contradiction it found, in words without secrets."""

    scopes: int
    charges: int
    shards: int
    releases: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when nothing was found."""
        return not self.problems
