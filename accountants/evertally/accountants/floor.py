"""The certified lower bound of one mechanism, whatever its participation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evertally.accountants import lower_bound
from evertally.accountants.bound import Direction, LowerScope
from evertally.accountants.gaussian import delta_below, epsilon_below
from evertally.accountants.gram import Gram
from evertally.accountants.solve import smallest_admitted

__all__ = ["Floor"]

_COARSE = 1e-2
_TOLERANCE = 3e-4


@dataclass(frozen=True, slots=True)
class Floor:
    """The certified lower bound of one mechanism.

    Attributes:
        sensitivity_squared: of the mechanism without amplification, at clip norm 1.
        gram: random allocation of its smallest diagonal entry is below the mechanism; None where the bin is
            known or no bound is offered.
        known_bin: squared norm that an adversary who knows the bin attains; 0 where it does not apply.
        directions: which to bound.
        scope: what the lower bound speaks of.
    """

    sensitivity_squared: float
    gram: Gram | None
    known_bin: float
    directions: tuple[Direction, ...]
    scope: LowerScope

    def delta(self, sigma: float, epsilon: float) -> float:
        """Lower bound on delta at `epsilon`."""
        return self._delta(sigma, epsilon, lower_bound.CELLS, self.directions)

    def epsilon(self, sigma: float, delta: float) -> float:
        """Lower bound on epsilon at `delta`."""
        if self.gram is not None:
            return lower_bound.epsilon(self.gram, sigma, delta, directions=self.directions).value
        if self.known_bin > 0.0:
            return epsilon_below(delta, self._known_mu(sigma))
        return 0.0

    def noise_multiplier(self, admitted: float, epsilon: float, delta: float) -> float:
        """A noise multiplier that certainly does not meet the target; 0 where none is found."""
        least = admitted / 1e3
        if self.delta(least, epsilon) <= delta:
            return 0.0
        cells, directions = lower_bound.COARSE_CELLS, self.directions

        def log_excess(sigma: float) -> float:
            found = self._delta(sigma, epsilon, cells, directions)
            return math.log(max(found, 1e-320)) - math.log(delta)

        _, near = smallest_admitted(log_excess, admitted, tolerance=_COARSE, low=least)
        # either direction certifies: the full grid is for the larger one alone
        directions = max(((d,) for d in directions), key=lambda d: self._delta(near, epsilon, cells, d))
        cells = lower_bound.CELLS
        near *= 1.0 + _COARSE
        start, step = (
            (near, 1.0 + _COARSE) if near < admitted and log_excess(near) <= 0.0 else (admitted, 1.25)
        )
        refused, high = smallest_admitted(log_excess, start, tolerance=_TOLERANCE, low=least, step=step)
        return refused if refused < high else 0.0

    def _delta(self, sigma: float, epsilon: float, cells: int, directions: tuple[Direction, ...]) -> float:
        if self.gram is not None:
            return lower_bound.delta(self.gram, sigma, epsilon, cells, directions).value
        if self.known_bin > 0.0:
            return delta_below(epsilon, self._known_mu(sigma))
        return 0.0

    def _known_mu(self, sigma: float) -> float:
        """Rounded down."""
        return math.sqrt(self.known_bin) / sigma * (1.0 - 2.0**-50)
