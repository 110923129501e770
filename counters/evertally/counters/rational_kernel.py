"""Compiled loops of the rational engine, used where numba is installed; the same integers without it."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["run_many_keys", "run_one_key"]

_STATE_LIMIT: Final = 1 << 60
_WEIGHT_BITS: Final = 32
_STEPS_MAX: Final = 1 << 14
"""A tick adds less than 2^43 to a state: 2^14 ticks from below 2^60 stay inside int64."""
_WORTH_COMPILING: Final = 4096
_KEYS_A_SLICE: Final = 512
"""Keys worked on at once: their states stay in a core's fastest cache."""


def run_one_key(
    draws: NDArray[np.int64],
    states: MutableSequence[int],
    exponents: tuple[int, ...],
    weights: tuple[int, ...],
    shift: int,
) -> NDArray[np.int64] | None:
    """Advance `states` in place over `draws`; round(h/g) of shape (n,), or None to use plain Python.

    None where numba is absent, the run is short, weights are wider than 32 bits or a state has
    outgrown int64; the caller's own loop then gives the same integers.
    """
    kernel = _kernel() if len(draws) >= _WORTH_COMPILING else None
    fraction = shift - _WEIGHT_BITS
    if kernel is None or max(weights) >= 1 << _WEIGHT_BITS or fraction < 1:
        return None
    noise = np.empty_like(draws)
    start = list(states)
    for first in range(0, len(draws), _STEPS_MAX):
        if max(abs(s) for s in states) >= _STATE_LIMIT:
            states[:] = start
            return None
        compact = np.array(states, dtype=np.int64)
        part = slice(first, first + _STEPS_MAX)
        kernel(
            draws[part],
            noise[part],
            compact,
            np.array(exponents),
            np.array(weights, dtype=np.int64),
            fraction,
        )
        states[:] = compact.tolist()
    return noise


def run_many_keys(
    draws: NDArray[np.int64],
    states: NDArray[np.int64],
    exponents: NDArray[np.int64],
    weights: NDArray[np.int64],
    fraction: int,
) -> NDArray[np.int64] | None:
    """One tick of many keys: advance int64 `states` of shape (states, keys) in place.

    Returns round(h/g) of shape (keys,), or None where numba is absent or the bank is small.
    """
    if draws.size < _WORTH_COMPILING:
        return None
    kernel = _keys_kernel()
    if kernel is None:
        return None
    noise = np.empty_like(draws)
    kernel(draws, noise, states, exponents, weights, fraction)
    return noise


@lru_cache(maxsize=1)
def _kernel() -> Callable[..., None] | None:
    return _compiled(_advance)


@lru_cache(maxsize=1)
def _keys_kernel() -> Callable[..., None] | None:
    return _compiled(_advance_keys)


def _compiled(function: Callable[..., None]) -> Callable[..., None] | None:
    try:
        import numba  # noqa: PLC0415 - an optional extra, slow to import
    except ImportError:
        return None
    compiled: Callable[..., None] = numba.njit(nogil=True)(function)
    return compiled


def _advance_keys(draws: Any, noise: Any, states: Any, exponents: Any, weights: Any, fraction: int) -> None:
    decaying, keys = len(exponents), len(draws)
    lows, highs = np.empty(_KEYS_A_SLICE, np.int64), np.empty(_KEYS_A_SLICE, np.int64)
    for first in range(0, keys, _KEYS_A_SLICE):
        size = min(_KEYS_A_SLICE, keys - first)
        lows[:] = np.int64(1) << (31 + fraction)
        highs[:] = 0
        for i in range(decaying + 1):
            w = weights[i]
            k = exponents[i] if i < decaying else 0
            row = states[i, first : first + size]
            for j in range(size):
                d = row[j]
                if i < decaying:
                    d -= d >> k
                lows[j] += w * (d & 0x7FFFFFFF)
                highs[j] += w * (d >> 31)
                row[j] = d + (draws[first + j] << fraction)
        for j in range(size):
            noise[first + j] = (highs[j] + (lows[j] >> 31)) >> (1 + fraction)


def _advance(draws: Any, noise: Any, states: Any, exponents: Any, weights: Any, fraction: int) -> None:
    decaying = len(exponents)
    for t in range(len(draws)):
        low = np.int64(1) << (31 + fraction)
        high = np.int64(0)
        fresh = draws[t] << fraction
        for i in range(decaying):
            d = states[i] - (states[i] >> exponents[i])
            low += weights[i] * (d & 0x7FFFFFFF)
            high += weights[i] * (d >> 31)
            states[i] = d + fresh
        pole = states[decaying]
        low += weights[decaying] * (pole & 0x7FFFFFFF)
        high += weights[decaying] * (pole >> 31)
        states[decaying] = pole + fresh
        noise[t] = (high + (low >> 31)) >> (1 + fraction)
