"""Running noise power sum_{k<t} l_k^2, tick by tick, for the standard errors that are published.

Published bytes may not depend on the machine: powers and pairwise sums differ between processors,
so a track adds in order, and its state travels in the snapshot.
"""

from __future__ import annotations

import math
import struct
from functools import singledispatch
from typing import Final, Protocol

import numpy as np

from evertally.counters.factorization import Factorization
from evertally.errors import IntegrityError

__all__ = ["CoefficientPowerTrack", "NoisePowerTrack", "noise_power_track", "standard_error_text"]

_FIRST_COEFFICIENTS: Final = 1024


class NoisePowerTrack(Protocol):
    """Adds l_t^2 at each step; `power` is sum_{k<t} l_k^2 after t steps."""

    def step(self) -> float:
        """Advance one tick and return the power."""
        ...

    def state(self) -> bytes:
        """The state after the last step (public numbers)."""
        ...

    def load(self, state: bytes, t: int) -> None:
        """Continue from a state saved after tick t."""
        ...


class CoefficientPowerTrack:
    """The track of a factorization that offers its coefficients as an array."""

    __slots__ = ("_coefficients", "_factorization", "_power", "_t")

    def __init__(self, factorization: Factorization) -> None:
        self._factorization: Final = factorization
        self._coefficients = np.empty(0)
        self._power = 0.0
        self._t = 0

    def step(self) -> float:
        """Advance one tick; coefficients are asked for in blocks that double."""
        if self._t >= len(self._coefficients):
            wanted = max(_FIRST_COEFFICIENTS, 2 * self._t)
            if self._factorization.horizon is not None:
                wanted = max(self._t + 1, min(wanted, self._factorization.horizon))
            self._coefficients = self._factorization.noise_coefficients(wanted)
        self._power += float(self._coefficients[self._t]) ** 2
        self._t += 1
        return self._power

    def state(self) -> bytes:
        """Eight bytes: the power as a double."""
        return struct.pack(">d", self._power)

    def load(self, state: bytes, t: int) -> None:
        """Continue after tick t; coefficients are computed at the next step."""
        if len(state) != 8:
            raise IntegrityError("a noise power state has the wrong length")
        horizon = self._factorization.horizon
        if horizon is not None and t > horizon:
            raise IntegrityError("a noise power state lies past the mechanism's horizon")
        (self._power,) = struct.unpack(">d", state)
        if not (math.isfinite(self._power) and self._power >= 0.0):
            raise IntegrityError("a noise power state is not a finite number")
        self._t = t
        self._coefficients = np.empty(0)


@singledispatch
def noise_power_track(factorization: Factorization) -> NoisePowerTrack:
    """The track of a factorization, before its first tick."""
    return CoefficientPowerTrack(factorization)


def standard_error_text(sigma: float, power: float) -> str:
    """Standard error of a published integer, six significant digits: sqrt(sigma^2 power + 1/12).

    The 1/12 is the variance of rounding to a whole number.

    >>> standard_error_text(4.0, 1.0)
    '4.0104'
    """
    return f"{math.sqrt(sigma * sigma * power + 1.0 / 12.0):.6g}"
