"""The log-perturbed noise in constant memory: about 100 integer states a key, bit-identical everywhere.

In units of g 2^-f, with theta in units of 2^-62 and weights in units of 2^-52:
d_j = floor(s_j theta_j), round(h/g) = floor((sum_j W_j d_j + half) 2^-(52+f)), s_j = d_j + 2^f z_t/g.
Floors inside states are not amplified while all weights are positive (docs/proofs/quadrature-form.md).
One key runs on Python integers, many keys on int64 limbs; the integers are the same.
"""

from __future__ import annotations

import struct
from operator import mul
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from evertally.counters.factorization import NoiseEngine, NoiseSource
from evertally.counters.fft_engine import refuse_past
from evertally.counters.log_perturbed_nodes import THETA_BITS, WEIGHT_BITS, DyadicNodes
from evertally.errors import IntegrityError

__all__ = ["FRACTION_BITS", "constant_engine", "state_rounding"]

FRACTION_BITS: Final = 12
"""f: fraction bits of a state below the grid unit."""

_LIMIT: Final = 1 << 60  # int64 limbs are exact to 2^62; a tick adds less than 2^48
_CHECK_TICKS: Final = 1 << 10
_KEYS_A_SLICE: Final = 512  # 100 rows of int64 then stay in a core's cache
_PREFETCH: Final = 256
_HEADER: Final = struct.Struct(">BQQI")
_VERSION: Final = 1
_STATE_BYTES: Final = 16
_TICKS_MAX: Final = 1 << 62
_SHIFT: Final = WEIGHT_BITS + FRACTION_BITS
_LOW31: Final = (1 << 31) - 1
_LOW24: Final = (1 << 24) - 1

IntArray = NDArray[np.int64]


def state_rounding(nodes: DyadicNodes) -> float:
    """sum_i sup|rho_i| in units of g: every theta below 1 floors once a tick, by less than 2^-f."""
    return (len(nodes.thetas) - 1) * 2.0**-FRACTION_BITS


def constant_engine(nodes: DyadicNodes, source: NoiseSource, horizon: int | None) -> NoiseEngine:
    """Python integers for one key, int64 columns for several."""
    kind = _OneKey if source.keys == 1 else _ManyKeys
    return kind(nodes, source, horizon)


class _OneKey:
    def __init__(self, nodes: DyadicNodes, source: NoiseSource, horizon: int | None) -> None:
        self._nodes: Final = nodes
        self._source: Final = source
        self._horizon: Final = horizon
        self._states = [0] * len(nodes.thetas)
        self._t = 0
        self._ahead: list[int] = []

    @property
    def t(self) -> int:
        return self._t

    def step(self) -> tuple[IntArray, IntArray]:
        refuse_past(self._horizon, _TICKS_MAX, self._t + 1)
        if not self._ahead:
            self._ahead = self._source.block(self._t + 1, _PREFETCH)[::-1, 0].tolist()
        z = self._ahead.pop()
        h = self._advance(z)
        self._t += 1
        return np.array([z]), np.array([h])

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        refuse_past(self._horizon, _TICKS_MAX, self._t + count)
        draws = self._source.block(self._t + 1, count)
        self._ahead = []
        noise = np.array([self._advance(z) for z in draws[:, 0].tolist()], dtype=np.int64)
        self._t += count
        return draws, noise.reshape(count, 1)

    def state(self) -> bytes:
        return _pack(np.array(self._states, dtype=object)[:, None], self._t)

    def load(self, state: bytes, t: int) -> None:
        self._states = _unpack(state, t, len(self._states), 1)[:, 0].tolist()
        self._t, self._ahead = t, []

    def _advance(self, z: int) -> int:
        kept = [s * theta >> THETA_BITS for s, theta in zip(self._states, self._nodes.thetas, strict=True)]
        fresh = z << FRACTION_BITS
        self._states = [d + fresh for d in kept]
        total: int = sum(map(mul, self._nodes.weights, kept), 1 << (_SHIFT - 1))
        return total >> _SHIFT


class _ManyKeys:
    """States of shape (nodes, keys), int64 until they outgrow it, then Python integers (never an error)."""

    def __init__(self, nodes: DyadicNodes, source: NoiseSource, horizon: int | None) -> None:
        self._nodes: Final = nodes
        self._source: Final = source
        self._horizon: Final = horizon
        thetas = nodes.thetas[:-1]
        self._theta_high: Final = np.array([theta >> 31 for theta in thetas], dtype=np.int64)[:, None]
        self._theta_low: Final = np.array([theta & _LOW31 for theta in thetas], dtype=np.int64)[:, None]
        self._weight_high: Final = np.array([w >> 24 for w in nodes.weights], dtype=np.int64)
        self._weight_low: Final = np.array([w & _LOW24 for w in nodes.weights], dtype=np.int64)
        self._states: NDArray[np.int64] | NDArray[np.object_] = np.zeros(
            (len(nodes.thetas), source.keys), dtype=np.int64
        )
        self._t = 0
        self._unchecked = 0

    @property
    def t(self) -> int:
        return self._t

    def step(self) -> tuple[IntArray, IntArray]:
        z, h = self.run(1)
        return z[0], h[0]

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        refuse_past(self._horizon, _TICKS_MAX, self._t + count)
        draws = self._source.block(self._t + 1, count)
        noise = np.empty_like(draws)
        for i in range(count):
            self._widen_when_due()
            if self._states.dtype == np.int64:
                for low in range(0, draws.shape[1], _KEYS_A_SLICE):
                    part = slice(low, low + _KEYS_A_SLICE)
                    noise[i, part] = self._advance(part, draws[i, part])
            else:
                noise[i] = self._advance_wide(draws[i])
            self._t += 1
        return draws, noise

    def state(self) -> bytes:
        return _pack(self._states, self._t)

    def load(self, state: bytes, t: int) -> None:
        states = _unpack(state, t, *self._states.shape)
        fits = all(-_LIMIT < int(s) < _LIMIT for s in states.ravel().tolist())
        self._states = states.astype(np.int64) if fits else states
        self._t, self._unchecked = t, 0

    def _widen_when_due(self) -> None:
        if self._unchecked == 0 and self._states.dtype == np.int64:
            states = cast(IntArray, self._states)
            if int(states.max()) >= _LIMIT or int(states.min()) <= -_LIMIT:
                self._states = self._states.astype(object)
        self._unchecked = (self._unchecked + 1) % _CHECK_TICKS

    def _advance(self, part: slice, z: IntArray) -> IntArray:
        states = cast(IntArray, self._states[:, part])
        # (s theta) >> 62 with s = s1 2^31 + s0 and theta = t1 2^31 + t0: floors of floors are exact.
        high, low = states[:-1] >> 31, states[:-1] & _LOW31
        middle = low * self._theta_low
        middle >>= 31
        middle += high * self._theta_low
        middle += low * self._theta_high
        middle >>= 31
        high *= self._theta_high
        np.add(high, middle, out=states[:-1])
        noise = self._rounded_sum(states)
        states += z << FRACTION_BITS
        return noise

    def _rounded_sum(self, kept: IntArray) -> IntArray:
        """(sum W d + half) >> (52+f): d in limbs of 31 bits, W in limbs of 24 and 28.

        The weights add up to at most 2^52, so high limbs sum below 2^28 and 100 low ones below 2^31.
        """
        high, low = kept >> 31, kept & _LOW31
        at24 = ((self._weight_low @ low) >> 24) + self._weight_high @ low
        at31 = (at24 >> 7) + self._weight_low @ high
        at55 = (at31 >> 24) + self._weight_high @ high
        rounded: IntArray = (at55 + (1 << (_SHIFT - 56))) >> (_SHIFT - 55)
        return rounded

    def _advance_wide(self, z: IntArray) -> IntArray:
        thetas = np.array(self._nodes.thetas, dtype=object)[:, None]
        kept = (self._states * thetas) >> THETA_BITS
        total = np.array(self._nodes.weights, dtype=object) @ kept + (1 << (_SHIFT - 1))
        self._states = kept + (z.astype(object) << FRACTION_BITS)
        return cast(IntArray, (total >> _SHIFT).astype(np.int64))


def _pack(states: NDArray[np.int64] | NDArray[np.object_], t: int) -> bytes:
    """Header and 16 signed big-endian bytes a state: room for 2^62 ticks, a size that never changes."""
    nodes, keys = states.shape
    header = _HEADER.pack(_VERSION, t, keys, nodes)
    if states.dtype == np.int64:
        words = np.empty((nodes, keys, 2), dtype=">i8")
        words[..., 0], words[..., 1] = states >> 63, states
        return header + words.tobytes()
    return header + b"".join(int(s).to_bytes(_STATE_BYTES, "big", signed=True) for s in states.flat)


def _unpack(state: bytes, t: int, nodes: int, keys: int) -> NDArray[np.object_]:
    body = state[_HEADER.size :]
    if state[: _HEADER.size] != _HEADER.pack(_VERSION, t, keys, nodes):
        raise IntegrityError("the stored noise state does not fit this stream's tick and keys")
    if len(body) != nodes * keys * _STATE_BYTES:
        raise IntegrityError("the stored noise state has the wrong size")
    values = np.empty(nodes * keys, dtype=object)
    for i in range(nodes * keys):
        values[i] = int.from_bytes(body[i * _STATE_BYTES : (i + 1) * _STATE_BYTES], "big", signed=True)
    return values.reshape(nodes, keys)
