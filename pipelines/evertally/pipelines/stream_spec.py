"""What a stream is: its public parameters, fixed for one incarnation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, Final

from evertally.accountants.budget.amounts import NANO
from evertally.accountants.budget.charges import ChargeRequest
from evertally.accountants.budget.counter_loss import CounterParameters, counter_grid, fit_counter
from evertally.accountants.budget.ledger import OpenedStream, StreamRecord
from evertally.accountants.budget.lines import CounterLine
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.gaussian import gaussian_epsilon
from evertally.counters.contribution import Contribution
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.counters.mechanisms import parse_mechanism
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.ticks import FIRST_MS, LAST_MS
from evertally.validation import integer, one_of, positive_integer, positive_real

__all__ = ["CLOSING_RULES", "StreamSpec", "header_of", "retry_key"]

_PARAMETERS: Final = tuple(item.name for item in fields(CounterParameters) if item.name != "keys")
CLOSING_RULES: Final = ("file", "arrival", "event-time")
_DESCRIPTOR_VERSION: Final = 2
_KEY_LENGTH_MAX: Final = 128  # of a name in the ledger
_SINCE_2: Final = ("unit_field", "timezone", "other", "version")


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream's declaration. All of it is public; none of it may come from the data.

    Attributes:
        name: the stream's name.
        keys: declared keys in their declared order.
        start_ms: start of tick 1, epoch milliseconds.
        tick_ms: length of a tick.
        scope: the budget scope with unit, adjacency and caps.
        mechanism: mechanism id, for example "rational:W32".
        clip, lower, participations, min_separation, per_tick: what one unit may contribute
            (`evertally.counters.Contribution`), bounded before counting.
        mu: GDP parameter to spend at most; None takes all that the scope's filter allows.
        slack_horizon: ticks whose rounding is paid for in advance.
        shards: releasers that share the keys.
        closing: one of CLOSING_RULES: how events find their tick.
        value_unit: what one count stands for, in words.
        unit_field: the field that identifies the privacy unit, "" at event level.
        timezone: IANA name of what a time stamp without an offset means, "" to refuse such.
        other: the declared key that takes undeclared ones, "" to refuse those.
    """

    name: str
    keys: tuple[str, ...]
    start_ms: int
    tick_ms: int
    scope: Scope
    mechanism: str = "rational:W32"
    clip: int = 1
    lower: int = 0
    participations: int = 1
    min_separation: int = 1
    per_tick: int = 1
    mu: float | None = None
    slack_horizon: int = SLACK_HORIZON
    shards: int = 1
    closing: str = "file"
    value_unit: str = "events"
    unit_field: str = ""
    timezone: str = ""
    other: str = ""
    _fitted: CounterParameters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.keys or len(set(self.keys)) != len(self.keys) or not all(self.keys):
            raise InvalidParameter("keys", f"{len(self.keys)} keys", "at least one, distinct, none empty")
        integer("start_ms", self.start_ms, low=FIRST_MS, high=LAST_MS)
        positive_integer("tick_ms", self.tick_ms)
        positive_integer("shards", self.shards, high=len(self.keys))
        one_of("closing", self.closing, CLOSING_RULES)
        object.__setattr__(self, "_fitted", self._fit())

    def _fit(self) -> CounterParameters:
        """The least noise on the grid that stays within mu, or within the whole cap of the scope."""
        units = self.scope.caps().main
        if self.mu is not None:
            wanted = positive_real("mu", self.mu, high=2.0**15)
            units = min(units, int(Fraction(wanted) ** 2 * NANO))
        if units < 1:
            raise InvalidParameter("mu", self.mu, "a mu whose square is at least one nano unit")
        bare = CounterParameters(
            mechanism=self.mechanism,
            q=1,
            keys=len(self.keys),
            clip=self.clip,
            lower=self.lower,
            participations=self.participations,
            min_separation=self.min_separation,
            per_tick=self.per_tick,
            slack_horizon=min(
                self.slack_horizon, parse_mechanism(self.mechanism).horizon or self.slack_horizon
            ),
        )
        try:
            return fit_counter(bare, self.scope, units)
        except InvalidParameter as error:
            if error.field != "units":
                raise
            raise InvalidParameter(
                "clip", self.clip, "a smaller share of one unit, or more epsilon: this needs noise above 2^30"
            ) from None

    @property
    def contribution(self) -> Contribution:
        """The bounds on one unit, under the scope's adjacency."""
        return self._fitted.contribution(self.scope.adjacency)

    @property
    def grid(self) -> Grid:
        """The snapping grid: sigma and the exact price of the stream."""
        return counter_grid(self._fitted, self.scope)

    def grid_to(self, slack_horizon: int) -> Grid:
        """The same noise and its price up to another slack horizon, once the ledger has charged it."""
        return counter_grid(replace(self._fitted, slack_horizon=slack_horizon), self.scope)

    def paid_horizon(self, opened: OpenedStream) -> int:
        """Last tick that is paid for: the ledger's, which may have been extended."""
        return opened.slack_horizon or self.grid.slack_horizon

    def record(self) -> StreamRecord:
        """What the ledger keeps of the stream."""
        return StreamRecord(self.name, self.keys, self.shards, self._descriptor())

    def charge(self) -> ChargeRequest:
        """The one charge that pays for the stream, for ever."""
        return ChargeRequest(
            scope=self.scope.name,
            unit=self.scope.unit,
            adjacency=self.scope.adjacency,
            line=CounterLine(self._fitted),
        )

    def first_charge(self) -> ChargeRequest:
        """The charge of the first incarnation: processes that begin the stream together pay it once."""
        return replace(self.charge(), idempotency_key=retry_key("first", self.name))

    def changes(self, opened: OpenedStream) -> tuple[str, ...]:
        """Names of the parameters in which an opened incarnation differs; each change needs a new one."""
        mine: dict[str, object] = {**self._descriptor(), "keys": list(self.keys), "shards": self.shards}
        theirs: dict[str, object] = {
            **opened.descriptor,
            "keys": list(opened.keys),
            "shards": opened.shards,
        }
        if theirs.get("version") == 1:  # it did not say these; what it was opened with cannot be known
            mine = {key: value for key, value in mine.items() if key not in _SINCE_2}
            del theirs["version"]
        return tuple(sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)))

    def require_same(self, opened: OpenedStream) -> None:
        """Refuse to go on with an incarnation that was opened with other parameters.

        The one thing that may grow is the slack horizon, and the ledger keeps that (`extend_horizon`).
        """
        changed = self.changes(opened)
        if changed:
            what = "a new key" if "keys" in changed else "a change"
            raise InvalidParameter(
                "stream",
                "another " + ", ".join(changed),
                f"the parameters of incarnation {opened.incarnation}; {what} needs a new incarnation "
                "and is a new charge",
            )

    def header(self, incarnation: int) -> StreamHeader:
        """The public header that stands before the stream's releases."""
        return _header(self.name, incarnation, self.keys, self.scope, self._descriptor())

    def epsilon(self, mu: float) -> float:
        """Epsilon at the scope's delta of lines that lose `mu` together, their own small deltas included.

        What the scope has admitted never loses more than its cap.
        """
        return _epsilon(self.scope, mu)

    def _descriptor(self) -> dict[str, object]:
        p = self._fitted
        return {
            "version": _DESCRIPTOR_VERSION,
            "start_ms": self.start_ms,
            "tick_ms": self.tick_ms,
            "closing": self.closing,
            "value_unit": self.value_unit,
            "unit_field": self.unit_field,
            "timezone": self.timezone,
            "other": self.other,
            "scope": self.scope.name,
            "unit": self.scope.unit,
            "adjacency": self.scope.adjacency,
            "mechanism": p.mechanism,
            "q": p.q,
            "clip": p.clip,
            "lower": p.lower,
            "participations": p.participations,
            "min_separation": p.min_separation,
            "per_tick": p.per_tick,
            "slack_horizon": p.slack_horizon,
        }


def retry_key(purpose: str, stream: str, *more: str) -> str:
    """An idempotency key for a charge of a stream; a name that would make it too long stands as its hash."""
    key = "-".join((purpose, stream, *more))
    if len(key) <= _KEY_LENGTH_MAX:
        return key
    return "-".join((purpose, hashlib.sha256(stream.encode()).hexdigest(), *more))


def header_of(opened: OpenedStream, scope: Scope) -> StreamHeader:
    """The same header, from what the ledger holds alone."""
    return _header(opened.name, opened.incarnation, opened.keys, scope, opened.descriptor)


def _header(
    name: str, incarnation: int, keys: tuple[str, ...], scope: Scope, descriptor: Mapping[str, Any]
) -> StreamHeader:
    parameters = CounterParameters(keys=len(keys), **{name: descriptor[name] for name in _PARAMETERS})
    grid = counter_grid(parameters, scope)
    return StreamHeader(
        stream=name,
        incarnation=incarnation,
        keys=keys,
        start_ms=descriptor["start_ms"],
        tick_ms=descriptor["tick_ms"],
        mechanism=parameters.mechanism,
        unit=scope.unit,
        adjacency=scope.adjacency,
        mu=grid.mu,
        epsilon=_epsilon(scope, grid.mu),
        delta=float(scope.delta_cap),
        sigma=grid.sigma,
        clip=parameters.clip,
        lower=parameters.lower,
        participations=parameters.participations,
        min_separation=parameters.min_separation,
        per_tick=parameters.per_tick,
        slack_horizon=grid.slack_horizon,
    )


def _epsilon(scope: Scope, mu: float) -> float:
    own = float(scope.delta_cap) - float(scope.delta_lines or 0)
    if own <= 0:
        raise IntegrityError("a scope's delta parts do not fit its cap")
    return min(float(scope.epsilon_cap), gaussian_epsilon(own, mu))
