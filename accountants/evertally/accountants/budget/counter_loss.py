"""The loss of a running counter, recomputed from its factorization, contribution bounds and grid.

One counter is one Gaussian mechanism whose releases, for ever, cost mu = (Delta q + A)/2^30: sensitivity
plus the rounding slack up to the slack horizon (`evertally.counters.grid`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from evertally.accountants.budget.amounts import mu_of_units
from evertally.accountants.budget.scopes import Scope
from evertally.counters import parse_mechanism
from evertally.counters.contribution import Contribution
from evertally.counters.factorization import Factorization
from evertally.counters.grid import SLACK_HORIZON, Grid
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.validation import positive_integer

__all__ = [
    "CounterParameters",
    "computational_delta",
    "counter_grid",
    "counter_mu2",
    "fit_counter",
    "keyed_stream_delta",
    "output_sd",
]

_OVERFLOW: Final = Fraction(1, 2**100)
_MECHANISM: Final = re.compile(r"[a-z][a-z-]{0,31}:[A-Za-z0-9._,;:=+-]{1,400}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CounterParameters:
    """Public parameters of a counter's noise, fixed before any data.

    The bounds are those of `evertally.counters.contribution.Contribution`; the adjacency is the scope's.

    Attributes:
        mechanism: canonical id of the factorization, for example "rational:W32".
        q: grid units in one count; sigma = 2^30/q.
        keys: number of keys (counters) of the stream.
        clip, lower, participations, min_separation, per_tick: what one unit may do, over all keys.
        slack_horizon: number of ticks whose rounding slack is charged.
    """

    mechanism: str
    q: int
    keys: int
    clip: int = 1
    lower: int = 0
    participations: int = 1
    min_separation: int = 1
    per_tick: int = 1
    slack_horizon: int = SLACK_HORIZON

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, str) or not _MECHANISM.fullmatch(self.mechanism):
            got = self.mechanism[:64] if isinstance(self.mechanism, str) else self.mechanism
            raise InvalidParameter("line.mechanism", got, 'a mechanism id, such as "rational:W32"')
        positive_integer("line.q", self.q, high=2**62)
        positive_integer("line.keys", self.keys, high=2**40)
        positive_integer("line.slack_horizon", self.slack_horizon, high=2**50)
        self.contribution("add-remove")

    def contribution(self, adjacency: str) -> Contribution:
        """The bounds under one adjacency; each is checked."""
        return Contribution(
            self.clip, self.lower, self.participations, self.min_separation, self.per_tick, adjacency
        )


def counter_grid(p: CounterParameters, scope: Scope) -> Grid:
    """The grid with the counter's q, whose `mu` is the price for one unit of the scope.

    Raises:
        UnsupportedMechanism: the factorization has no valid sensitivity for these bounds.
        InvalidParameter: several contributions where the unit is one event, a horizon beyond the mechanism's.
    """
    mechanism = factorization(p.mechanism)
    if scope.event_level and (p.participations, p.per_tick) != (1, 1):
        raise InvalidParameter(
            "line.participations", p.participations, "1 contribution where the unit is one event"
        )
    if mechanism.horizon is not None and p.slack_horizon > mechanism.horizon:
        raise InvalidParameter("line.slack_horizon", p.slack_horizon, f"at most {mechanism.horizon} ticks")
    bounds = p.contribution(scope.adjacency)
    grid = Grid.for_sigma(
        mechanism,
        1.0,
        bounds.sensitivity(mechanism),
        touched_counters=bounds.touched_counters(p.keys),
        slack_horizon=p.slack_horizon,
    )
    return replace(grid, q=p.q)


def counter_mu2(p: CounterParameters, scope: Scope) -> Fraction:
    """Squared mu of a counter for one unit of the scope, rounded up.

    Guarantees:
        - holds for every release up to the slack horizon, under adaptively chosen input.
    """
    return Fraction(counter_grid(p, scope).mu) ** 2


def fit_counter(p: CounterParameters, scope: Scope, units: int) -> CounterParameters:
    """The same counter with the least noise (largest q) whose charge is at most `units` of a gaussian scope.

    Raises UnsupportedMechanism where no noise on the grid fits, InvalidParameter for units < 1.
    """
    grid = counter_grid(replace(p, q=1), scope)
    budget = Fraction(mu_of_units(units)) * 2**30 - Fraction(grid.slack)
    q = math.floor(budget / Fraction(grid.sensitivity))
    if q < 1:
        raise InvalidParameter("units", units, "a budget above the slack of this counter")
    return replace(p, q=q)


def computational_delta(p: CounterParameters) -> Fraction:
    """The counter's own delta: undecided draws, AES as a random function, and integer states' limits.

    The states of one key reach their limit with probability at most 2^-100 up to the slack horizon.
    """
    return keyed_stream_delta(p.slack_horizon * p.keys) + p.keys * _OVERFLOW


def keyed_stream_delta(blocks: int) -> Fraction:
    """What `blocks` draws under one key differ from true randomness by: undecided ones, AES as a function."""
    return Fraction(blocks, 2**92) + Fraction(blocks * blocks, 2**129)


def output_sd(p: CounterParameters, t: int) -> float:
    """Standard deviation of the release at tick t, in counts."""
    return 2.0**30 / p.q * math.sqrt(factorization(p.mechanism).noise_power(t))


def factorization(mechanism: str) -> Factorization:
    """The factorization of a mechanism id.

    Raises:
        InvalidParameter: an unknown one.
        UnsupportedMechanism: one whose history is computed by FFT, a block at a time: its rounding has seen
            later draws, which the proof of the charge excludes (docs/proofs/snapped-mechanism.md, section 8).
    """
    found = parse_mechanism(mechanism)
    if found.eta > 0.0:
        raise UnsupportedMechanism(
            f"{mechanism} computes its history by FFT, whose rounding depends on later draws: no charge is "
            "proved for it; add ,memory=constant"
        )
    return found
