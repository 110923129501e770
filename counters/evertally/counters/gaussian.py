"""Exactly rounded Gaussian draws from uniform random bits.

A draw is the integer nearest to 2^30 Z for a standard normal Z, decided exactly: the fast path
evaluates the normal quantile in doubles and keeps its answer only where a certified error bound
leaves no doubt; the few doubtful draws (about 4e-5) are settled by comparing the random bits with
the tail function at high precision. The result is therefore a function of the bits alone, the same
on every machine (docs/proofs/snapped-mechanism.md, section 9).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from evertally.errors import IntegrityError

__all__ = ["GRID_BITS", "LANES_MAX", "exact_gaussians"]

GRID_BITS: Final = 30
"""A draw has standard deviation 2^GRID_BITS in grid units."""
LANES_MAX: Final = 4
"""Blocks that one draw may use; needing more has probability below 2^-400."""

_SCALE: Final = 2.0**GRID_BITS
_QUANTILE_ERROR: Final = 2.0**-46
_SMALLEST_FAST: Final = np.uint64(1 << 20)
_LOW_63: Final = np.uint64((1 << 63) - 1)
_INVERSE_SQRT_2PI: Final = 0.3989422804014327

_SLICE: Final = 1 << 13
_LOCAL: Final = threading.local()

UInt64Array = NDArray[np.uint64]
MoreBits = Callable[[int, int], int]


def exact_gaussians(high: UInt64Array, low: UInt64Array, more_bits: MoreBits) -> NDArray[np.int64]:
    """Round 2^30 Z to the nearest integer for independent standard normals Z, exactly.

    Args:
        high: uint64 of shape (n,): the top bit is the sign, the other 63 bits lead the tail probability.
        low: uint64 of shape (n,): the next 64 bits of the tail probability.
        more_bits: (index, lane) -> 128 further random bits as an int, lane >= 1; asked only where
            the first block does not decide (probability about 2^-93).

    Returns:
        int64 of shape (n,), in grid units.

    Guarantees:
        - correctly rounded for every input, whatever `ndtri` returns within its certified error.
    """
    result = np.empty(len(high), dtype=np.int64)
    for first in range(0, len(high), _SLICE):
        part = slice(first, first + _SLICE)
        result[part] = _draw(high[part], low[part], first, more_bits)
    return result


def _draw(high: UInt64Array, low: UInt64Array, first: int, more_bits: MoreBits) -> NDArray[np.int64]:
    """One cache-sized slice whose first draw has index `first`."""
    tail = high & _LOW_63
    x = -ndtri((tail.astype(np.float64) + 0.5) * 2.0**-64)
    y = _SCALE * x
    magnitude = np.rint(y)
    density = _INVERSE_SQRT_2PI * np.exp(-0.5 * x * x)
    doubt = np.abs(y - magnitude) + _SCALE * (2.0**-64 / density + _QUANTILE_ERROR * np.maximum(1.0, x))
    settled = (doubt < 0.5) & (tail >= _SMALLEST_FAST)
    result = np.where(settled, magnitude, 0.0).astype(np.int64)
    for index in np.flatnonzero(~settled):
        i = int(index)
        result[i] = _settle((int(tail[i]) << 64) | int(low[i]), first + i, more_bits)
    return np.where(high >> np.uint64(63), -result, result)


def _settle(bits: int, index: int, more_bits: MoreBits) -> int:
    """Decide one magnitude from its 127 leading bits, taking further blocks while they straddle."""
    width = 128
    for lane in range(1, LANES_MAX + 1):
        decided = _decide(bits, width)
        if decided is not None:
            return decided
        bits = (bits << 128) | more_bits(index, lane)
        width += 128
    raise IntegrityError("a Gaussian draw stayed undecided; the random bits are not random")


def _context() -> mpmath.MPContext:
    """A context of this thread's own: mpmath's precision is a global of the context it belongs to."""
    if not hasattr(_LOCAL, "context"):
        _LOCAL.context = mpmath.MPContext()
    return _LOCAL.context


def _decide(bits: int, width: int) -> int | None:
    """The magnitude n with Q((n+1/2) 2^-30) < p <= Q((n-1/2) 2^-30) for all p in the cell, or None."""
    context = _context()
    context.prec = width + 96
    smallest = context.ldexp(bits, -width)
    largest = context.ldexp(bits + 1, -width)

    def tail_above(n: int) -> object:
        return context.erfc(context.ldexp(2 * n + 1, -GRID_BITS - 1) / context.sqrt(2)) / 2

    n = _nearest(context, largest)
    for _ in range(64):
        if n > 0 and not largest <= tail_above(n - 1):
            if smallest >= tail_above(n - 1):
                n -= 1
                continue
            return None
        if smallest > tail_above(n):
            return n
        if largest <= tail_above(n):
            n += 1
            continue
        return None
    raise IntegrityError("a Gaussian draw did not settle near its quantile")


def _nearest(context: mpmath.MPContext, probability: mpmath.mpf) -> int:
    """nint(2^30 Q^{-1}(probability)) to within a few units; probability is positive.

    The float quantile of a double is that near wherever the tail is above 2^-200; `_decide` walks the rest.
    """
    x = context.mpf(-float(ndtri(float(probability))))
    return int(context.nint(context.ldexp(x, GRID_BITS)))
