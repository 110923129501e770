"""From a clipped sum to integers: the grid, its price, and the bound that no sum leaves.

The noise has a standard deviation of exactly 2^30 grid units, so the size of a unit decides how much noise a
run has. A step's sum S becomes the integers floor(q S + 1/2); what rounding can add to a record's reach is
paid for by making q smaller, before any data is seen (docs/proofs/training-noise.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.gaussian import GRID_BITS
from evertally.errors import InvalidParameter, UnsupportedMechanism
from evertally.pipelines.training.noise import ELEMENTS_MAX, TENSORS_MAX
from evertally.validation import positive_integer, positive_real, real

__all__ = ["ROUNDING", "StepGrid", "clip_integers"]

_UNIT: Final = 1 << GRID_BITS
ROUNDING: Final = 4.0
"""How far, per element, quantising and re-clipping can add to the difference of two sums, in grid units:
each moves a number by less than one unit and a half, in either world, and 2 x 2 bounds both."""
_SLACK_MAX: Final = 0.01
_REACH_MAX: Final = 2**50


@dataclass(frozen=True, slots=True)
class StepGrid:
    """How one step's sum is written in integers. All public, all fixed before any data.

    Attributes:
        q: grid units in a gradient of 1; the noise's standard deviation is 2^30 / q.
        reach: the largest norm of a sum in grid units; a longer one is shortened to it.
        record_norm: the largest norm, in grid units, by which one privacy unit moves the integers of a step,
            with its part of the rounding of correlated rows; at most 2^30 / noise_multiplier.
        elements: number of coordinates.
    """

    q: float
    reach: int
    record_norm: float
    elements: int

    @classmethod
    def fit(
        cls,
        *,
        noise_multiplier: float,
        sensitivity: float,
        elements: int,
        units_max: int,
        row_rounding: float = 0.0,
    ) -> StepGrid:
        """The finest grid whose noise covers `noise_multiplier`, rounding included.

        Args:
            noise_multiplier: sigma of the charged line.
            sensitivity: norm of one unit's contribution before quantising (the clip norm and its slack).
            elements: number of coordinates d.
            units_max: privacy units that one step's sum can hold without being shortened; public.
            row_rounding: what the rounding of a correlated row adds per element, in units of the smallest
                tap (0 for independent noise).

        Raises:
            UnsupportedMechanism: rounding would cost more than a hundredth of the noise.
        """
        sigma = positive_real("noise_multiplier", noise_multiplier, high=2.0**20)
        norm = positive_real("sensitivity", sensitivity, high=2.0**40)
        d = positive_integer("elements", elements, high=ELEMENTS_MAX * TENSORS_MAX)
        units = positive_integer("units_max", units_max, high=2**40)
        rows = real("row_rounding", row_rounding, low=0.0, high=1e12)
        allowed = Fraction(_UNIT) / Fraction(sigma)
        slack = Fraction(math.sqrt(d) * (ROUNDING + rows) * (1.0 + 2.0**-40))
        if slack > Fraction(_SLACK_MAX) * allowed:
            raise UnsupportedMechanism(
                f"{d} parameters at noise multiplier {sigma:g}: rounding alone would take more than "
                f"{_SLACK_MAX:.0%} of the noise; train fewer parameters, or use a strategy with larger taps"
            )
        q = _below((allowed - slack) / Fraction(norm))
        reach = math.ceil(Fraction(q) * Fraction(norm) * units) + 1
        if reach > _REACH_MAX:
            raise InvalidParameter(
                "units_max", units, f"sums below 2^50 grid units (2^{GRID_BITS} / sigma each)"
            )
        return cls(q, reach, float(Fraction(q) * Fraction(norm) + slack), d)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of one step's noise in gradient units: 2^30 / q."""
        return _UNIT / self.q

    def quantise(self, tensors: list[NDArray[np.float64]]) -> list[NDArray[np.int64]]:
        """The sum's integers, tensor by tensor, within `reach` as a whole.

        Never NaN and never an error: a number that is not finite counts as 0 or as the reach, since an error
        would depend on data.
        """
        rounded = []
        for tensor in tensors:
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = np.asarray(tensor, np.float64).ravel() * self.q
            finite = np.nan_to_num(scaled, nan=0.0, posinf=self.reach, neginf=-self.reach)
            clipped = np.clip(finite, -self.reach, self.reach)
            # half up by floor: round half to even would leak a parity
            rounded.append(np.floor(clipped + 0.5).astype(np.int64))
        return clip_integers(rounded, self.reach)


def clip_integers(tensors: list[NDArray[np.int64]], reach: int) -> list[NDArray[np.int64]]:
    """The integers scaled towards zero to a joint l2 norm of at most `reach`; exact where it matters.

    Projecting on a ball brings no two points further apart; rounding towards zero adds less than one unit.
    """
    estimate = math.sqrt(sum(float(np.square(tensor.astype(np.float64)).sum()) for tensor in tensors))
    if estimate < reach * (1.0 - 1e-6):
        return tensors
    exact = [[int(x) for x in tensor.tolist()] for tensor in tensors]
    squared = sum(x * x for tensor in exact for x in tensor)
    if squared <= reach * reach:
        return tensors
    norm = math.isqrt(squared - 1) + 1
    return [
        np.array([(1 if x >= 0 else -1) * (abs(x) * reach // norm) for x in tensor], np.int64)
        for tensor in exact
    ]


def _below(value: Fraction) -> float:
    q = float(value)
    return q if Fraction(q) <= value else math.nextafter(q, 0.0)
