"""Noise power of a sum of exponentials, in integers: the same digits on every machine, constant memory."""

from __future__ import annotations

from collections.abc import Callable
from operator import mul
from typing import Final

from evertally.counters.encoding import pack_integers, unpack_integers

__all__ = ["ExponentialPowerTrack"]

_BITS: Final = 96
"""Fraction bits of theta^k; a floor a tick costs 2^-96, so 2^30 ticks stay below 2^-66."""


class ExponentialPowerTrack:
    """Power of l_k = sum_i w_i theta_i^k with l_0 = 1: the theta_i^k and the sum of squares as integers."""

    __slots__ = ("_at_zero", "_decay", "_power", "_powers", "_rest", "_weight_bits", "_weights")

    def __init__(
        self, weights: tuple[int, ...], weight_bits: int, decay: Callable[[list[int]], list[int]]
    ) -> None:
        """Start before the first tick.

        Args:
            weights: integers in units of 2^-weight_bits; what they leave of 1 stands at theta = 0.
            weight_bits: bits of a weight.
            decay: multiplies each fixed-point power by its theta, rounded down.
        """
        self._weights: Final = weights
        self._weight_bits: Final = weight_bits
        self._decay: Final = decay
        self._at_zero: Final = ((1 << weight_bits) - sum(weights)) << _BITS
        self._rest = self._at_zero
        self._powers = [1 << _BITS] * len(weights)
        self._power = 0

    def step(self) -> float:
        """Advance one tick and return sum_{k<t} l_k^2."""
        coefficient = sum(map(mul, self._weights, self._powers), self._rest) >> self._weight_bits
        self._rest = 0
        self._powers = self._decay(self._powers)
        self._power += (coefficient * coefficient) >> _BITS
        return self._power / (1 << _BITS)

    def state(self) -> bytes:
        """The integers, length-prefixed."""
        return pack_integers([self._power, *self._powers])

    def load(self, state: bytes, t: int) -> None:
        """Continue after tick t."""
        self._power, *self._powers = unpack_integers(state, len(self._weights) + 1)
        self._rest = 0 if t > 0 else self._at_zero
