"""What a mechanism that knows the last tick would have cost: the yardstick in plots.

Reference: the square-root factorization of arXiv 2202.11205, cut at the last tick T: with
V_t = sum_{k<t} c_k^2, c the coefficients of (1-z)^(-1/2), its standard error at t and equal privacy is
(C/mu) sqrt(V_T V_t) where a unit contributes once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evertally.counters.power_series import power_coefficients
from evertally.pipelines.releases import StreamHeader

__all__ = ["known_end_stderr"]


def known_end_stderr(header: StreamHeader, last: int, ticks: Sequence[int]) -> NDArray[np.float64]:
    """Standard errors at `ticks` of the square-root mechanism made for exactly `last` ticks.

    Args:
        header: the stream: its mu, clip and bound on a unit's contributions.
        last: T, the tick at which that mechanism ends.
        ticks: ticks t in 1..T.

    Returns:
        Standard errors in value units, float64, shape (len(ticks),).
    """
    coefficients = power_coefficients(0.5, last)
    power = np.cumsum(coefficients**2)
    # the costliest pattern of a positive, decreasing column: the earliest ticks, `min_separation` apart
    seen = np.zeros(last)
    for start in range(0, min(last, header.participations * header.min_separation), header.min_separation):
        seen[start:] += coefficients[: last - start]
    sensitivity = header.clip * header.per_tick * _adjacency_factor(header) * math.sqrt(float(seen @ seen))
    errors: NDArray[np.float64] = sensitivity / header.mu * np.sqrt(power[np.asarray(ticks) - 1])
    return errors


def _adjacency_factor(header: StreamHeader) -> float:
    """Replacing is removing and adding; at one place and with one sign it costs no more than removing."""
    if header.adjacency == "add-remove" or (header.adjacency == "replace-value" and header.lower == 0):
        return 1.0
    return math.sqrt(2.0) if header.lower == 0 else 2.0
