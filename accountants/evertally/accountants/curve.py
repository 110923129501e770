"""From a curve delta(epsilon) back to the epsilon of a delta, on a stated side."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["epsilon_at"]

_RELATIVE_STEP = 1e-13


def epsilon_at(delta_of: Callable[[float], float], delta: float, high: float, *, upper: bool = True) -> float:
    """The epsilon in [0, high] at which a falling curve reaches `delta`.

    Args:
        delta_of: a curve that does not rise; delta_of(high) <= delta is taken for granted.
        delta: the target.
        high: an epsilon known to be admitted.
        upper: return the admitted side (delta_of <= delta), else the refused one.

    >>> round(epsilon_at(lambda e: 0.5 ** e, 0.25, 9.0), 12)
    2.0
    """
    if delta_of(0.0) <= delta:
        return 0.0
    low = 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if high - low <= _RELATIVE_STEP * high or middle in (low, high):
            break
        if delta_of(middle) <= delta:
            high = middle
        else:
            low = middle
    return high if upper else low
