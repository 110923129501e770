"""What the ledger says in public: spends of scopes, and the published totals of streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["KeyTotal", "KeyWindow", "ScopeStanding", "ShardHead", "Standing", "StreamStanding"]


class ShardHead(NamedTuple):
    """How far a shard is committed (operators' plane) and published (public)."""

    committed_t: int
    published_t: int


class KeyTotal(NamedTuple):
    """The last published total of a key; `stderr` is the published decimal text."""

    key: str
    t: int
    tick_end_ms: int
    value: int
    stderr: str


class KeyWindow(NamedTuple):
    """The last published total of a key less the one a window earlier, with its exact standard error."""

    key: str
    window: str
    value: int
    stderr: float


@dataclass(frozen=True, slots=True)
class ScopeStanding:
    """A scope's spend against its caps, in the ledger's integer units.

    Attributes:
        name: the scope.
        order: its Renyi order; None for a gaussian scope, whose main amounts are nano-mu2.
        caps, spent: (main, epsilon, delta); spent includes reservations.
    """

    name: str
    order: float | None
    caps: tuple[int, int, int]
    spent: tuple[int, int, int]

    @property
    def mu2(self) -> tuple[float, float]:
        """(spent, cap) of the filter as squared Gaussian mu; Renyi at order a is a mu^2/2."""
        scale = 1e-9 if self.order is None else 2e-9 / self.order
        return self.spent[0] * scale, self.caps[0] * scale

    @property
    def spent_ratio(self) -> float:
        """The largest spent part of its caps, 1 where one is used up."""
        return max(
            (spent / cap for spent, cap in zip(self.spent, self.caps, strict=True) if cap > 0), default=0.0
        )


@dataclass(frozen=True, slots=True)
class StreamStanding:
    """The latest incarnation of a stream.

    Attributes:
        name: the stream.
        incarnation: its number.
        keys: declared keys in their order.
        tick_ms: length of a tick; 0 where its descriptor names none.
        live: whether its ticks close by the clock; a file's stream ends.
        value_unit: what one count stands for, in words.
        mechanism: mechanism id.
        heads: one for each shard.
        totals: last published totals by key, in the order of `keys`.
        windows: window counts, key by key.
    """

    name: str
    incarnation: int
    keys: tuple[str, ...]
    tick_ms: int
    live: bool
    value_unit: str
    mechanism: str
    heads: tuple[ShardHead, ...]
    totals: tuple[KeyTotal, ...]
    windows: tuple[KeyWindow, ...]

    @property
    def published_t(self) -> int:
        """Last tick that every shard has published."""
        return min((head.published_t for head in self.heads), default=0)

    @property
    def tick_end_ms(self) -> int | None:
        """End of the last tick that every shard has published; None before the first."""
        if not self.published_t:
            return None
        return min((total.tick_end_ms for total in self.totals), default=None)


@dataclass(frozen=True, slots=True)
class Standing:
    """One consistent look at the ledger; scopes by name, streams in the order they were first opened."""

    scopes: tuple[ScopeStanding, ...]
    streams: tuple[StreamStanding, ...]
