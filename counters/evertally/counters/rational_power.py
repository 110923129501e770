"""Noise power of a rational factorization in integers: the same digits on every machine."""

from __future__ import annotations

from operator import mul
from typing import Final

from evertally.counters.encoding import pack_integers, unpack_integers

__all__ = ["RationalPowerTrack"]

_BITS: Final = 96
"""Fraction bits of theta^k; a floor a tick costs 2^-96, so 2^30 ticks stay below 2^-66."""


class RationalPowerTrack:
    """theta_i^k as fixed-point integers p_i <- p_i - (p_i >> k_i); the power as one more integer."""

    __slots__ = ("_exponents", "_pole", "_power", "_powers", "_rest", "_weight_bits", "_weights")

    def __init__(self, exponents: tuple[int, ...], weights: tuple[int, ...], weight_bits: int) -> None:
        self._exponents: Final = exponents
        self._weights: Final = weights[:-2]
        self._pole: Final = weights[-2] << _BITS
        self._rest = weights[-1] << _BITS
        self._weight_bits: Final = weight_bits
        self._powers = [1 << _BITS] * len(exponents)
        self._power = 0

    def step(self) -> float:
        """Advance one tick and return sum_{k<t} l_k^2."""
        coefficient = sum(map(mul, self._weights, self._powers), self._pole + self._rest)
        self._rest = 0
        self._powers = [p - (p >> k) for p, k in zip(self._powers, self._exponents, strict=True)]
        coefficient >>= self._weight_bits
        self._power += (coefficient * coefficient) >> _BITS
        return self._power / (1 << _BITS)

    def state(self) -> bytes:
        """The integers, length-prefixed."""
        return pack_integers([self._power, *self._powers])

    def load(self, state: bytes, t: int) -> None:
        """Continue after tick t."""
        self._power, *self._powers = unpack_integers(state, len(self._exponents) + 1)
        if t > 0:
            self._rest = 0
