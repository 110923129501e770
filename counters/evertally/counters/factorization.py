"""The seam between the mathematics of a mechanism and everything that uses it.

A factorization is a pair of lower-triangular Toeplitz matrices L R = (all ones): noise passes
through L, data is seen through R. The counter publishes S_t + (L z)_t (arXiv 2506.15018, section 2).
Everything here is public: parameters, coefficients, sensitivities. Noise values pass through engines.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Factorization", "NoiseEngine", "NoiseSource"]

IntArray = NDArray[np.int64]


class NoiseSource(Protocol):
    """Independent Gaussian draws z_t/g of standard deviation exactly 2^30, one column a key.

    The draw of (key, t) is a pure function: asking again gives the same integers.
    """

    @property
    def keys(self) -> int:
        """Number of keys, the width of a block."""
        ...

    def block(self, first: int, count: int) -> IntArray:
        """Draws for ticks first .. first+count-1 (the first tick of a stream is 1), shape (count, keys)."""
        ...


class NoiseEngine(Protocol):
    """Realises the noise of one factorization for a fixed set of keys, tick by tick, in grid units g.

    An engine never sees data. `t` is the number of ticks already stepped.
    """

    @property
    def t(self) -> int:
        """Number of ticks stepped so far."""
        ...

    def step(self) -> tuple[IntArray, IntArray]:
        """Advance to tick t+1; return (z_t/g, round(h_t/g)) as int64 arrays of shape (keys,).

        h_t = sum_{i<t} l_{t-i} z_i excludes the fresh draw, so the noise of the release is z_t + h_t.
        """
        ...

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        """Advance `count` ticks at once; two int64 arrays of shape (count, keys), equal to `count` steps."""
        ...

    def state(self) -> bytes:
        """The state after tick t, of a size that does not grow with t; sensitive, to be sealed at rest."""
        ...

    def load(self, state: bytes, t: int) -> None:
        """Replace the state by one saved after tick t. Raises IntegrityError when it does not fit."""
        ...


@runtime_checkable
class Factorization(Protocol):
    """A factorization of the counting matrix, with what its accounting and its engines need."""

    @property
    def mechanism_id(self) -> str:
        """Canonical id, for example "rational:W32"; `evertally.counters.parse_mechanism` reads it back."""
        ...

    def noise_coefficients(self, n: int) -> NDArray[np.float64]:
        """l_0 .. l_{n-1}, first column of L."""
        ...

    def strategy_coefficients(self, n: int) -> NDArray[np.float64]:
        """r_0 .. r_{n-1}, first column of R = L^{-1} (all ones)."""
        ...

    def sensitivity_squared(
        self, participations: int = 1, min_separation: int = 1, horizon: int | None = None
    ) -> float:
        """Squared l2 sensitivity at clip 1, rounded up; horizon=None means for ever.

        Raises UnsupportedMechanism where no valid bound is known (a closed form whose precondition
        fails, or an infinite horizon for a mechanism that needs one).
        """
        ...

    def noise_power(self, t: int) -> float:
        """sum_{k<t} l_k^2: the variance of the release at t is sigma^2 times this."""
        ...

    @property
    def horizon(self) -> int | None:
        """Last tick that may be released, or None where the guarantee holds for ever."""
        ...

    @property
    def kappa(self) -> float:
        """Upper bound on ||L^{-1}||_{2->2}, the factor by which output rounding reaches the noise."""
        ...

    @property
    def state_rounding(self) -> float:
        """sum_i sup|rho_i| in units of g: how much rounding the engine's states add a tick (0 for FFT)."""
        ...

    @property
    def eta(self) -> float:
        """Bound in units of g on |h_t - exact h_t| before the last rounding, on every path."""
        ...

    def engine(self, source: NoiseSource) -> NoiseEngine:
        """An engine over the keys of `source`, before its first tick."""
        ...
