"""The smallest noise that a curve of many parts admits: sought on few of its parts, answered for the whole.

A narrower or coarser curve is a bound too, so the way to the answer runs over cheap ones. The parts that are
taken to the end must be the best of the whole curve at its own answer: that is looked up there, once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evertally.accountants.curves import Curve, NarrowingCurve
from evertally.accountants.solve import LogExcess, smallest_admitted, smallest_forecast

__all__ = ["NOISE_MAX", "TOLERANCE", "NarrowSearch"]

TOLERANCE = 1e-7
"""Relative width of a calibrated noise multiplier."""
NOISE_MAX = 1e8
_COARSE = 1e-2
_REACH = 1e-4
_TOLERANCES = (_COARSE, TOLERANCE, TOLERANCE, TOLERANCE)


@dataclass(frozen=True, slots=True)
class NarrowSearch:
    """One curve and one target.

    Attributes:
        whole: the curve.
        epsilon: privacy loss of the target.
        delta: target.
    """

    whole: NarrowingCurve
    epsilon: float
    delta: float

    def near(self, start: float, *, known: bool) -> float:
        """A noise of which little can be spared, admitted (by cheap parts at least); infinity without one.

        Args:
            start: where to begin; raised until it is admitted unless `known`.
            known: whether another curve admits `start`, so that more noise is of no interest.
        """
        narrow = self.whole.focused(start, self.epsilon)
        while self._refuses(narrow, start):
            if not self._refuses(self.whole, start):
                return start
            start *= 2.0
            if known or start > NOISE_MAX:
                return math.inf
            narrow = self.whole.focused(start, self.epsilon)
        step = 1.25
        while not self._refuses(narrow, start):
            low = start * _REACH
            _, start = smallest_admitted(self._excess(narrow), start, tolerance=_COARSE, low=low, step=step)
            step = 1.0 + _COARSE
            again = self.whole.focused(start, self.epsilon)
            if narrow.covers(again):
                break
            narrow = again
        return start

    def sharp_delta(self, sigma: float) -> float:
        """The whole curve's delta, as good as it gets at `sigma`."""
        return self.whole.sharpened(sigma, self.epsilon).delta(sigma, self.epsilon).value

    def finish(self, start: float) -> tuple[float, str]:
        """The smallest admitted noise from `start` down, and what to say of it; infinity without one."""
        sharp = self.whole.sharpened(start, self.epsilon)
        if self._refuses(sharp, start):
            return math.inf, ""
        parts, known = self.whole.shortlisted(start, self.epsilon), [start]
        for tolerance in _TOLERANCES:
            start = self._least(sharp, known, tolerance)
            best = parts.sharpened(start, self.epsilon)
            parts = self.whole
            if not sharp.covers(best) and not self._refuses(best, start):
                sharp, known = best, [start]
            elif tolerance == TOLERANCE:
                break
        step = _COARSE / 100.0
        while self._refuses(self.whole, start):  # its own choice of parts may be a little worse, and counts
            start *= 1.0 + step
            step *= 2.0
        return start, sharp.delta(start, self.epsilon).note

    def _least(self, sharp: NarrowingCurve, known: list[float], tolerance: float) -> float:
        target = math.log(self.delta)
        return smallest_forecast(
            self._excess(sharp),
            lambda evaluated, sigma: sharp.forecast(evaluated, sigma, self.epsilon) - target,
            known,
            tolerance=tolerance,
            low=known[0] * _REACH,
        )

    def _refuses(self, curve: Curve, sigma: float) -> bool:
        return curve.delta(sigma, self.epsilon).value > self.delta

    def _excess(self, curve: Curve) -> LogExcess:
        target = math.log(self.delta)
        return lambda sigma: math.log(curve.delta(sigma, self.epsilon).value) - target
