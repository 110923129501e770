"""Ledger lines with a Gaussian loss: counters that run for ever, one release, windows, key selection.

Each line holds public parameters only and says what it loses about one privacy unit of its scope.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, cast

from scipy.special import log_ndtr

from evertally.accountants.budget.amounts import Amount, decimal_text, exact
from evertally.accountants.budget.counter_loss import (
    CounterParameters,
    computational_delta,
    counter_grid,
    counter_mu2,
    output_sd,
)
from evertally.accountants.budget.loss import Line, Loss
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.budget.training import TrainingLine
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import one_of, positive_integer

__all__ = ["CounterLine", "GaussianLine", "KeySelectionLine", "WindowsLine", "line_from_json"]


@dataclass(frozen=True, slots=True)
class CounterLine:
    """A running counter: one Gaussian mechanism, charged once for every release up to its slack horizon.

    Reference: arXiv 2506.15018 (the mechanism); docs/proofs (the snapped form and its slack).
    """

    parameters: CounterParameters
    kind: ClassVar[str] = "counter"

    def to_json(self) -> dict[str, object]:
        """See `Line`."""
        return {"kind": self.kind, **asdict(self.parameters)}

    def loss(self, scope: Scope) -> Loss:
        """See `Line`."""
        return Loss(mu2=counter_mu2(self.parameters, scope), delta=computational_delta(self.parameters))


@dataclass(frozen=True, slots=True)
class GaussianLine:
    """Exact Gaussian releases with fresh noise: mu^2 = releases (sensitivity/sigma)^2.

    Attributes:
        sensitivity: l2 sensitivity under the scope's unit and adjacency.
        sigma: standard deviation of the noise.
        releases: how many releases may differ between neighbours; under replace, those that a unit touches
            and those that the one in its place touches.
    """

    sensitivity: Amount
    sigma: Amount
    releases: int = 1
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", decimal_text("line.sensitivity", self.sensitivity))
        object.__setattr__(self, "sigma", decimal_text("line.sigma", self.sigma))
        positive_integer("line.releases", self.releases)

    def to_json(self) -> dict[str, object]:
        """See `Line`."""
        return {"kind": self.kind, **asdict(self)}

    def loss(self, scope: Scope) -> Loss:  # noqa: ARG002 - the sensitivity is stated for the scope's unit
        """See `Line`."""
        mu = exact("line.sensitivity", self.sensitivity) / exact("line.sigma", self.sigma)
        return Loss(mu2=self.releases * mu * mu)


@dataclass(frozen=True, slots=True)
class WindowsLine:
    """Gaussian releases over time windows, fresh noise in each.

    The window is decided by the event's own time: at event level a record touches one tumbling window,
    ceil(length/stride) sliding ones. Under replace the time may move: two groups of windows, the root of
    the two largest squares; under replace-value it stays. A user touches `windows_per_unit` windows, and
    under replace the user in its place as many others. Every pane fired again is a new release. Session
    windows depend on other records and are refused.

    Attributes:
        sensitivity, sigma: of the release of one window.
        window: "tumbling" or "sliding".
        length_ms, stride_ms: window length and stride; equal for tumbling windows.
        firings: releases of one window, 1 when no pane fires again.
        windows_per_unit: bound on the windows one unit may touch; None at event level.
    """

    sensitivity: Amount
    sigma: Amount
    window: str
    length_ms: int
    stride_ms: int
    firings: int = 1
    windows_per_unit: int | None = None
    kind: ClassVar[str] = "windows"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", decimal_text("line.sensitivity", self.sensitivity))
        object.__setattr__(self, "sigma", decimal_text("line.sigma", self.sigma))
        if self.window == "session":
            raise UnsupportedMechanism("session windows depend on other records and have no valid bound")
        one_of("line.window", self.window, ("tumbling", "sliding"))
        positive_integer("line.length_ms", self.length_ms)
        positive_integer("line.stride_ms", self.stride_ms, high=self.length_ms)
        if self.window == "tumbling" and self.stride_ms != self.length_ms:
            raise InvalidParameter("line.stride_ms", self.stride_ms, "the length of a tumbling window")
        positive_integer("line.firings", self.firings)
        if self.windows_per_unit is not None:
            positive_integer("line.windows_per_unit", self.windows_per_unit)

    def to_json(self) -> dict[str, object]:
        """See `Line`."""
        return {"kind": self.kind, **asdict(self)}

    def loss(self, scope: Scope) -> Loss:
        """See `Line`."""
        if scope.event_level:
            touched = -(-self.length_ms // self.stride_ms)
        elif self.windows_per_unit is None:
            raise UnsupportedMechanism(
                "a unit that may touch an unbounded number of windows has no finite loss"
            )
        else:
            touched = self.windows_per_unit
        if scope.adjacency == "replace":  # a unit and what takes its place may have no window in common
            touched *= 2
        mu = exact("line.sensitivity", self.sensitivity) / exact("line.sigma", self.sigma)
        return Loss(mu2=touched * self.firings * mu * mu)


@dataclass(frozen=True, slots=True)
class KeySelectionLine:
    """Keys shown once their noisy running count passes a threshold: a counter's loss and a delta.

    A key that only one unit holds shows at some tick with probability at most horizon * Q((threshold -
    reach)/sd), reach = the unit's largest total in a key, sd the largest noise up to the horizon. For
    rounding a count is taken off the distance: half of it is the release's, the other half, or what it
    takes, that of the noise on the grid.

    Attributes:
        parameters: the counter behind the selection; its `keys` counts the keys a unit may touch.
        threshold: smallest noisy total at which a key is shown.
        horizon: last tick at which keys are shown.
    """

    parameters: CounterParameters
    threshold: int
    horizon: int
    kind: ClassVar[str] = "key_selection"

    def __post_init__(self) -> None:
        positive_integer("line.threshold", self.threshold, high=2**1000)
        positive_integer("line.horizon", self.horizon, high=self.parameters.slack_horizon)

    def to_json(self) -> dict[str, object]:
        """See `Line`."""
        own = {"threshold": self.threshold, "horizon": self.horizon}
        return {"kind": self.kind, **asdict(self.parameters), **own}

    def loss(self, scope: Scope) -> Loss:
        """See `Line`."""
        p = self.parameters
        # a total of values >= 0 that is 0 without the unit holds the unit's own alone
        either_sign = p.lower < 0 and scope.adjacency != "add-remove"
        reach = p.clip * p.participations * p.per_tick * (2 if either_sign else 1)
        sd = output_sd(p, self.horizon)
        drift = counter_grid(p, scope).slack / 2.0**30
        distance = (self.threshold - reach - 1) / sd - max(0.0, drift - 0.5 / sd)
        if not distance > 1.0:
            raise InvalidParameter(
                "line.threshold", self.threshold, "a threshold above one unit's reach and the noise"
            )
        log_tail = float(log_ndtr(-distance)) + math.log(self.horizon) + math.log(p.keys)
        shown = Fraction(math.exp(log_tail) * (1.0 + 2.0**-40) + 5e-324)
        return Loss(mu2=counter_mu2(p, scope), delta=computational_delta(p) + shown)


def line_from_json(body: Mapping[str, object]) -> Line:
    """Read back what `to_json` wrote. Raises InvalidParameter for unknown kinds, fields and values."""
    values = dict(body)
    kind = values.pop("kind", None)
    try:
        return _build(kind, cast("dict[str, Any]", values))
    except TypeError:
        raise InvalidParameter("line", kind, "exactly the fields of this kind of line") from None


def _build(kind: object, values: dict[str, Any]) -> Line:
    if kind == CounterLine.kind:
        return CounterLine(CounterParameters(**values))
    if kind == KeySelectionLine.kind:
        inner = {f.name: values.pop(f.name) for f in fields(CounterParameters) if f.name in values}
        return KeySelectionLine(CounterParameters(**inner), **values)
    if kind == GaussianLine.kind:
        return GaussianLine(**values)
    if kind == WindowsLine.kind:
        return WindowsLine(**values)
    if kind == TrainingLine.kind:
        return TrainingLine(**values)
    raise InvalidParameter("line.kind", kind, "counter, gaussian, windows, key_selection or training")
