"""The smallest noise that a decreasing curve admits, from the admitted side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["Forecast", "LogExcess", "smallest_admitted", "smallest_forecast"]

LogExcess = Callable[[float], float]
"""Of a noise multiplier: log(delta / target), non-increasing; <= 0 is admitted."""
Forecast = Callable[[Sequence[float], float], float]
"""Of the noise multipliers evaluated so far, and one more: a cheap guess of the log excess at that one."""

_STEPS_MAX = 200
_LOG_FLOOR = -800.0


def smallest_admitted(
    log_excess: LogExcess, start: float, *, tolerance: float, low: float, step: float = 1.25
) -> tuple[float, float]:
    """Noise multipliers (refused, admitted), admitted / refused - 1 <= tolerance.

    Args:
        log_excess: the curve.
        start: an admitted value.
        tolerance: relative width of the answer.
        step: first factor by which the search goes down from `start`.
        low: where the search for a refused value ends; everything above it admitted returns (low, low).

    Inverse quadratic interpolation in logarithms, else false position with Illinois' weights, kept off the
    ends so that both sides close in. Both returned values have been evaluated: the second is admitted as it
    stands.
    """
    high, high_excess = start, max(log_excess(start), _LOG_FLOOR)
    factor = step
    reach = math.log(step)
    while True:
        trial = max(high * math.exp(-reach), low)
        excess = max(log_excess(trial), _LOG_FLOOR)
        if excess > 0.0:
            break
        if trial == low:
            return low, low
        factor *= factor
        # a little past where the last two values point, if that is not too far to believe
        fall = excess - high_excess
        pointed = -1.05 * excess * math.log(high / trial) / fall if fall > 0.0 else math.inf
        reach = max(pointed, 0.5 * math.log(step)) if pointed < 8.0 * math.log(factor) else math.log(factor)
        high, high_excess = trial, excess
    return _close_in(log_excess, (trial, excess), (high, high_excess), tolerance)


def smallest_forecast(
    log_excess: LogExcess, forecast: Forecast, known: list[float], *, tolerance: float, low: float
) -> float:
    """An admitted noise multiplier, by the forecast within `tolerance` of the smallest: for a dear curve.

    The root of the forecast is evaluated and learned from until it stays where it is. What is returned has
    been evaluated, and is admitted as it stands.

    Args:
        log_excess: the curve.
        forecast: its model; it meets the curve at the values evaluated last.
        known: values evaluated before, at least one admitted; those evaluated now are appended.
        tolerance: relative width.
        low: the least value that is looked at.
    """
    high = min(noise for noise in known if log_excess(noise) <= 0.0)
    refused = max((noise for noise in known if noise < high), default=low)
    for step in range(_STEPS_MAX):
        _, root = smallest_admitted(
            lambda noise: forecast(known, noise), high, tolerance=tolerance / 8.0, low=refused, step=1.02
        )
        aim = root * (1.0 + 0.4 * tolerance)
        if step % 8 == 7:
            aim = math.sqrt(refused * high)  # a forecast that does not learn
        if root * (1.0 + tolerance) >= high or not refused < aim < high:
            break
        if log_excess(aim) > 0.0:
            refused = aim
        else:
            high = aim
        known.append(aim)
        if high <= refused * (1.0 + tolerance):
            break
    return high


def _close_in(
    log_excess: LogExcess,
    refused: tuple[float, float],
    admitted: tuple[float, float],
    tolerance: float,
) -> tuple[float, float]:
    low, low_weight = refused
    high, high_weight = admitted
    last = 0
    known = [refused, admitted]
    for step in range(_STEPS_MAX):
        if high <= low * (1.0 + tolerance):
            break
        width = math.log(high / low)
        share = low_weight / (low_weight - high_weight) if low_weight > high_weight else 0.5
        curved = _inverse_quadratic(known[-3:])
        if curved is not None and low < curved < high:
            share = math.log(curved / low) / width
        if step % 8 == 7:
            share = 0.5
        margin = min(0.5, 0.4 * tolerance / width)
        guess = low * math.exp(width * min(max(share, margin), 1.0 - margin))
        if not low < guess < high:
            break
        excess = max(log_excess(guess), _LOG_FLOOR)
        known.append((guess, excess))
        if excess > 0.0:
            low, low_weight = guess, excess
            high_weight *= 0.5 if last == 1 else 1.0
            last = 1
        else:
            high, high_weight = guess, excess
            low_weight *= 0.5 if last == -1 else 1.0
            last = -1
    return low, high


def _inverse_quadratic(points: list[tuple[float, float]]) -> float | None:
    """Where the parabola of log noise over excess through three points reaches 0; None without one."""
    if len(points) < 3:
        return None
    (_, u), (_, v), (_, w) = points
    if len({u, v, w}) < 3:
        return None
    a, b, c = (math.log(noise) for noise, _ in points)
    at = a * v * w / ((u - v) * (u - w)) + b * u * w / ((v - u) * (v - w)) + c * u * v / ((w - u) * (w - v))
    return math.exp(at) if abs(at) < 700.0 else None
