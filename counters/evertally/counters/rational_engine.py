"""The noise engine of rational factorizations: integer states, bit-identical everywhere.

State i follows s <- s + z - (s >> k) in units of g 2^-f (theta = 1: an exact sum). One definition of
the noise serves one key and many: d_i = s_i - (s_i >> k_i),
round(h/g) = (sum_i W_i d_i + 2^(B-1+f)) >> (B+f) with B-bit weights, then s_i = d_i + 2^f z_t/g.
The floor inside a state is not amplified by the mechanism (docs/proofs/snapped-mechanism.md, lemma).
"""

from __future__ import annotations

from operator import mul, rshift, sub
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from evertally.counters.encoding import SECRET_BYTES, pack_integers, unpack_integers
from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.rational_kernel import run_many_keys, run_one_key
from evertally.errors import IntegrityError

__all__ = ["FRACTION_BITS", "STATE_LIMIT_BITS", "rational_engine"]

FRACTION_BITS: Final = 8
"""f: fraction bits of a state below the grid unit."""
STATE_LIMIT_BITS: Final = 60
"""Int64 states may grow to 2^60; beyond, Python integers take over (never an error)."""

_CHECK_TICKS: Final = 1 << 12
"""A tick adds less than 2^43 to a state, so 2^12 unchecked ticks stay below 2^56."""
_PREFETCH_TICKS: Final = 1024
_KEYS_A_SLICE: Final = 1024
"""Keys worked on at once: 13 rows of int64 then stay in a core's cache."""

IntArray = NDArray[np.int64]


def rational_engine(
    exponents: tuple[int, ...], weights: tuple[int, ...], weight_bits: int, source: NoiseSource
) -> NoiseEngine:
    """One key gets plain Python integers, several get int64 columns; the noise is the same integers."""
    if source.keys == 1:
        return OneKeyEngine(exponents, weights, weight_bits, source)
    return ManyKeyEngine(exponents, weights, weight_bits, source)


class OneKeyEngine:
    """States of one key as Python integers of any size."""

    __slots__ = ("_ahead", "_block", "_exponents", "_half", "_shift", "_source", "_states", "_t", "_weights")

    def __init__(
        self, exponents: tuple[int, ...], weights: tuple[int, ...], weight_bits: int, source: NoiseSource
    ) -> None:
        self._exponents: Final = exponents
        self._weights: Final = weights[:-1]
        self._shift: Final = weight_bits + FRACTION_BITS
        self._half: Final = 1 << (self._shift - 1)
        self._source: Final = source
        self._states = [0] * len(self._weights)
        self._t = 0
        self._block: IntArray = np.empty((0, 1), dtype=np.int64)
        self._ahead: list[int] = []

    @property
    def t(self) -> int:
        """Ticks stepped so far."""
        return self._t

    def step(self) -> tuple[IntArray, IntArray]:
        """One tick: (z, h) of shape (1,)."""
        if not self._ahead:
            self._block = self._source.block(self._t + 1, _PREFETCH_TICKS)
            self._ahead = self._block[::-1, 0].tolist()
        draw = self._block[-len(self._ahead)]
        h = self._advance(self._ahead.pop())
        self._t += 1
        return draw, np.array([h])

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        """Many ticks at once: compiled where numba is present, the same integers without it.

        A single one takes its draw from those made ahead: what a draw cost tells nothing of its own tick.
        """
        if count == 1:
            z, h = self.step()
            return z[None], h[None]
        draws = self._source.block(self._t + 1, count)
        self._ahead = []
        noise = run_one_key(draws[:, 0], self._states, self._exponents, self._weights, self._shift)
        if noise is None:
            noise = np.array([self._advance(z) for z in draws[:, 0].tolist()], dtype=np.int64)
        self._t += count
        return draws, noise.reshape(count, 1)

    def state(self) -> bytes:
        """The states, one after the other."""
        return pack_integers(self._states, SECRET_BYTES)

    def load(self, state: bytes, t: int) -> None:
        """Continue from states saved after tick t."""
        self._states = unpack_integers(state, len(self._weights))
        self._t, self._ahead = t, []

    def _advance(self, z: int) -> int:
        states = self._states
        kept = list(map(sub, states, map(rshift, states, self._exponents)))  # ends with the exponents
        kept.append(states[-1])
        fresh = z << FRACTION_BITS
        self._states = [d + fresh for d in kept]
        total: int = sum(map(mul, self._weights, kept), self._half)
        return total >> self._shift


class ManyKeyEngine:
    """States of many keys as int64 of shape (states, keys); Python integers where they outgrow that."""

    __slots__ = ("_exponents", "_source", "_states", "_t", "_unchecked", "_weight_bits", "_weights")

    def __init__(
        self, exponents: tuple[int, ...], weights: tuple[int, ...], weight_bits: int, source: NoiseSource
    ) -> None:
        self._exponents: Final = np.array(exponents, dtype=np.int64)[:, None]
        self._weights: Final = weights[:-1]
        self._weight_bits: Final = weight_bits
        self._source: Final = source
        self._states: NDArray[np.int64] | NDArray[np.object_] = np.zeros(
            (len(self._weights), source.keys), dtype=np.int64
        )
        self._t = 0
        self._unchecked = 0

    @property
    def t(self) -> int:
        """Ticks stepped so far."""
        return self._t

    def step(self) -> tuple[IntArray, IntArray]:
        """One tick: (z, h) of shape (keys,)."""
        z, h = self.run(1)
        return z[0], h[0]

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        """Many ticks: (z, h) of shape (count, keys)."""
        draws = self._source.block(self._t + 1, count)
        noise = np.empty_like(draws)
        for i in range(count):
            self._widen_when_due()
            if self._states.dtype != np.int64:
                noise[i] = self._advance_wide(draws[i])
            elif (compiled := self._compiled(draws[i])) is not None:
                noise[i] = compiled
            else:
                for low in range(0, draws.shape[1], _KEYS_A_SLICE):
                    part = slice(low, low + _KEYS_A_SLICE)
                    noise[i, part] = self._advance(part, draws[i, part])
            self._t += 1
        return draws, noise

    def state(self) -> bytes:
        """The keys' states: a byte for the width, then int64 big-endian or length-prefixed integers."""
        if self._states.dtype == np.int64:
            return b"\x00" + self._states.astype(">i8").tobytes()
        return b"\x01" + pack_integers((int(s) for s in self._states.ravel()), SECRET_BYTES)

    def load(self, state: bytes, t: int) -> None:
        """Continue from states saved after tick t."""
        shape = (len(self._weights), self._source.keys)
        if state[:1] == b"\x00" and len(state) == 1 + 8 * shape[0] * shape[1]:
            self._states = np.frombuffer(state[1:], dtype=">i8").astype(np.int64).reshape(shape)
        elif state[:1] == b"\x01":
            wide = np.array(unpack_integers(state[1:], shape[0] * shape[1]), dtype=object)
            self._states = wide.reshape(shape)
        else:
            raise IntegrityError("the stored noise states do not fit this stream's keys")
        self._t, self._unchecked = t, 0

    def _widen_when_due(self) -> None:
        """Hand over to Python integers before int64 could overflow."""
        if self._unchecked == 0 and self._states.dtype == np.int64:
            limit = 1 << STATE_LIMIT_BITS
            if int(self._states.max()) >= limit or int(self._states.min()) <= -limit:
                self._states = self._states.astype(object)
        self._unchecked = (self._unchecked + 1) % _CHECK_TICKS

    def _compiled(self, z: IntArray) -> IntArray | None:
        if self._weight_bits != 32:
            return None
        states = cast(IntArray, self._states)
        weights = np.array(self._weights, dtype=np.int64)
        return run_many_keys(z, states, self._exponents[:, 0], weights, FRACTION_BITS)

    def _advance(self, part: slice, z: IntArray) -> IntArray:
        states = cast(IntArray, self._states[:, part])
        decaying = states[:-1]
        decaying -= decaying >> self._exponents
        noise = (
            _rounded_sum_32(states, self._weights)
            if self._weight_bits == 32
            else _rounded_sum_60(states, self._weights)
        )
        states += z << FRACTION_BITS
        return noise

    def _advance_wide(self, z: IntArray) -> IntArray:
        states = self._states
        states[:-1] -= states[:-1] >> self._exponents.astype(object)
        shift = self._weight_bits + FRACTION_BITS
        total = np.array(self._weights, dtype=object) @ states + (1 << (shift - 1))
        states += z.astype(object) << FRACTION_BITS
        return cast(IntArray, (total >> shift).astype(np.int64))


def _rounded_sum_32(kept: IntArray, weights: tuple[int, ...]) -> IntArray:
    """(sum_i W_i d_i + half) >> (32+f), exact in int64: d is split at bit 31.

    The weights add up to less than 2^32, so the low sums stay below 2^63; |d| < 2^61 keeps the high ones.
    """
    w = np.array(weights, dtype=np.int64)
    low = w @ (kept & 0x7FFFFFFF)
    high = w @ (kept >> 31)
    carry = (low + (1 << 31 << FRACTION_BITS)) >> 31
    rounded: IntArray = (high + carry) >> (1 + FRACTION_BITS)
    return rounded


def _rounded_sum_60(kept: IntArray, weights: tuple[int, ...]) -> IntArray:
    """The same for 60-bit weights: W in two limbs of 30 bits, d in limbs of 24, 24 and the rest.

    Each product is below 2^54 and at most 32 are added; floors of floors are exact because every
    level adds integers only.
    """
    w0 = np.array([w & 0x3FFFFFFF for w in weights], dtype=np.int64)
    w1 = np.array([w >> 30 for w in weights], dtype=np.int64)
    d0, d1, d2 = kept & 0xFFFFFF, (kept >> 24) & 0xFFFFFF, kept >> 48
    at24 = ((w0 @ d0) >> 24) + w0 @ d1
    at30 = (at24 >> 6) + w1 @ d0
    at48 = (at30 >> 18) + w0 @ d2
    at54 = (at48 >> 6) + w1 @ d1
    half_at = 60 + FRACTION_BITS - 1
    at_half = (at54 >> (half_at - 54)) + ((w1 @ d2) << (78 - half_at)) + 1
    rounded: IntArray = at_half >> 1
    return rounded
