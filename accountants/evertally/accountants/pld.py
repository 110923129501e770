"""Privacy loss distributions on a regular grid: discretised outward, composed by FFT with a certified error.

A distribution here is the law of the privacy loss under the first argument of the divergence, on the grid
{i step}, with a mass at infinity. Each mechanism is discretised by splitting the density ratio W between two
grid points with its mean kept, which is above W in the convex order and stays so in products of independent
factors ("connect the dots", Doroshenko et al., arXiv 2207.04380). Composition is a product of Fourier
transforms under an exponential tilt, so that the noise floor of the FFT lies below the tail that matters;
its worst-case error is bounded a posteriori, frequency by frequency, and added to the masses.

Proof of every rounding step: docs/proofs/pld-rounding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from evertally.accountants.curve import epsilon_at
from evertally.accountants.normal import normal_mass
from evertally.errors import InvalidParameter
from evertally.validation import one_of, positive_real, probability, real

__all__ = ["PLD", "compose", "mixture_pld"]

Array = NDArray[np.float64]

_UNIT = 2.0**-53
_TAIL_SDS = 9.5
_LOSS_MARGIN = 4e-12
_MASS_MARGIN = 4e-12
_LOG_TAIL = math.log(1e-20)
_TILTS = 60
_TILT_RANGE = 1e-5
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, slots=True)
class PLD:
    """The law of a privacy loss, rounded outward.

    Guarantees:
        - `delta` and `epsilon` are upper bounds for the mechanism it was built from.

    Attributes:
        step: distance of two grid points, in nats.
        first: index of the first grid point: its loss is first * step.
        masses: upper bounds on the masses at the grid points, under the first argument, shape (n,).
        infinity: mass at infinite loss.
        slack: how far the true losses may lie from the grid points, in nats.
    """

    step: float
    first: int
    masses: Array
    infinity: float
    slack: float

    @property
    def losses(self) -> Array:
        """The grid points, shape (n,)."""
        return np.asarray((self.first + np.arange(len(self.masses))) * self.step)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at `epsilon` >= 0."""
        left = real("epsilon", epsilon, low=0.0) - self.slack - self.losses
        weights = np.where(left < 0.0, -np.expm1(np.minimum(left, 0.0)), 0.0)
        return min(1.0, float(weights @ self.masses) * (1.0 + 2.0**-40) + self.infinity)

    def epsilon(self, delta: float) -> float:
        """Upper bound on the epsilon at `delta`.

        Raises:
            InvalidParameter: `delta` is below the mass at infinity.
        """
        delta = probability("delta", delta)
        if self.infinity >= delta:
            raise InvalidParameter("delta", delta, f"more than the mass at infinite loss, {self.infinity:g}")
        return epsilon_at(self.delta, delta, max(0.0, float(self.losses[-1])) + self.slack)


def mixture_pld(weights: Array, means: Array, sigma: float, step: float, direction: str) -> PLD:
    """The pair P = sum_i weights_i N(means_i, sigma^2), Q = N(0, sigma^2), discretised outward.

    Args:
        weights: shape (m,), >= 0, summing to 1.
        means: shape (m,), >= 0: the density ratio is then increasing.
        sigma: noise standard deviation.
        step: grid step in nats.
        direction: "remove" (loss of P over Q under P) or "add" (of Q over P under Q).
    """
    one_of("direction", direction, ("remove", "add"))
    positive_real("step", step)
    kept = weights > 0.0
    log_weights, shifts = np.log(weights[kept]), means[kept] / positive_real("sigma", sigma)
    log_weights = log_weights - shifts**2 / 2.0

    def loss(z: Array) -> tuple[Array, Array]:
        """log of the density ratio at z standard deviations, and its slope."""
        terms = log_weights[:, None] + shifts[:, None] * z[None, :]
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        total = shares.sum(axis=0)
        return top + np.log(total), (shifts @ shares) / total

    ends = np.array([-_TAIL_SDS, float(shifts.max()) + _TAIL_SDS])
    bottom, top = loss(ends)[0]
    first = math.floor(bottom / step)
    last = max(math.ceil(top / step), first + 1)
    nodes = np.arange(first, last + 1) * step
    edges, deviation = _invert(loss, nodes[1:-1], ends, min(4096, 2 * len(nodes) + 32))
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    q = normal_mass(bounds)
    p = sum(w * normal_mass(bounds - m) for w, m in zip(weights[kept], shifts, strict=True))
    lower, gain = np.exp(nodes[:-1]), math.expm1(step)
    to_upper = np.clip((p / lower - q) / gain, 0.0, q)
    upper_excess = max(0.0, float(p[-1] - q[-1] * lower[-1] * math.exp(step)))
    missing = max(0.0, float(q[0] - p[0] / lower[0]))
    to_lower = q - to_upper
    to_lower[0] -= missing
    q_masses = np.zeros(len(nodes))
    q_masses[:-1] += to_lower
    q_masses[1:] += to_upper
    slack = deviation + _LOSS_MARGIN
    if direction == "add":
        return PLD(step, -last, q_masses[::-1] * (1.0 + _MASS_MARGIN), missing, slack)
    return PLD(step, first, q_masses * np.exp(nodes) * (1.0 + _MASS_MARGIN), upper_excess, slack)


def compose(parts: Sequence[tuple[PLD, int]], epsilon: float) -> PLD:
    """The composition of independent mechanisms, each with its number of repetitions.

    Args:
        parts: distributions on one common step, and how often each occurs.
        epsilon: where the result should be sharp: the tilt is chosen for this privacy loss. The result
            is an upper bound at every other epsilon too.

    Guarantees:
        - masses beyond the window and the worst-case rounding error of the transforms are added.
    """
    step = parts[0][0].step
    if any(pld.step != step for pld, _ in parts):
        raise InvalidParameter("parts", "several grid steps", "one common step")
    counts = np.array([count for _, count in parts])
    start, table = _table([pld for pld, _ in parts])
    losses = (start + np.arange(table.shape[1])) * step
    largest = _LARGEST_EXPONENT / max(losses[-1], -losses[0])
    rising = np.geomspace(_TILT_RANGE * largest, largest, _TILTS)
    tilts = np.concatenate([-rising[::-1], [0.0], rising])
    moments = counts @ np.log(table @ np.exp(losses[:, None] * tilts[None, :]))
    at = int(np.argmin(np.where(tilts >= 0.0, moments - tilts * epsilon, np.inf)))
    tilt, cumulant = float(tilts[at]), float(moments[at])
    # window: outside it the tilted law has less than _LOG_TAIL, by Chernoff's bound on both sides
    gains = moments - cumulant - _LOG_TAIL
    high = np.min(gains[at + 1 :] / (tilts[at + 1 :] - tilt), initial=float(counts.sum()) * losses[-1])
    low = np.max(-gains[:at] / (tilt - tilts[:at]), initial=float(counts.sum()) * min(losses[0], 0.0))
    first = math.floor(low / step) - 1
    size = next_fast_len(max(math.ceil(high / step) + 2 - first, table.shape[1]), real=True)
    masses = _tilted_product(table * np.exp(tilt * losses), counts, size, start * int(counts.sum()) - first)
    window = (first + np.arange(size)) * step
    masses = np.exp(np.minimum(np.log(masses) + cumulant - tilt * window, _LARGEST_EXPONENT))
    # what lies above the window: its mass, by Chernoff's bound at the best tilt
    beyond = math.exp(min(0.0, float(np.min((moments - tilts * window[-1])[tilts >= 0.0]))))
    infinity = min(1.0, beyond + float(sum(count * pld.infinity for pld, count in parts)))
    return PLD(step, first, masses, infinity, float(sum(count * pld.slack for pld, count in parts)))


def _table(plds: list[PLD]) -> tuple[int, Array]:
    """First index, and the masses of all distributions on one grid, shape (distributions, points)."""
    start = min(pld.first for pld in plds)
    table = np.zeros((len(plds), max(pld.first + len(pld.masses) for pld in plds) - start))
    for row, pld in zip(table, plds, strict=True):
        row[pld.first - start : pld.first - start + len(pld.masses)] = pld.masses
    return start, table


def _tilted_product(tilted: Array, counts: NDArray[np.int64], size: int, offset: int) -> Array:
    """Cyclic convolution of all rows, normalised, rotated by `offset`; rounded up, shape (size,)."""
    transform_error = 8.0 * _UNIT * math.log2(size)
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    log_magnitude, log_upper = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for row, count in zip(tilted, counts.tolist(), strict=True):
        spectrum = rfft(row / row.sum(), size)
        product *= _power(spectrum, count)
        # |a^n - b^n| <= (|a| + e)^n - |a|^n for |a - b| <= e; 64 units a factor cover the power itself
        magnitude = np.maximum(np.abs(spectrum), 1e-300)
        log_magnitude += count * np.log(magnitude)
        log_upper += count * np.log(magnitude * (1.0 + 64.0 * _UNIT) + transform_error)
    rotation = (np.arange(size // 2 + 1) * (offset % size)) % size
    product *= np.exp((-2j * math.pi / size) * rotation)
    spread = np.exp(log_upper) * (transform_error + 64.0 * _UNIT - np.expm1(log_magnitude - log_upper))
    error = 2.0 * float(np.sum(spread)) / size
    return np.asarray(np.maximum(irfft(product, size), 0.0) + error)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base ** exponent by repeated squaring."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def _invert(
    loss: Callable[[Array], tuple[Array, Array]], targets: Array, ends: Array, points: int
) -> tuple[Array, float]:
    """z with loss(z) = target, by interpolation and Newton (loss is convex), and the largest miss."""
    grid = np.linspace(ends[0], ends[1], points)
    values = loss(grid)[0]
    at = np.clip(np.searchsorted(values, targets), 1, points - 1)
    low, high = grid[at - 1], grid[at]
    z = np.interp(targets, values, grid)
    miss = np.zeros(0)
    for _ in range(6):
        value, slope = loss(z)
        miss = np.abs(value - targets)
        if not miss.size or float(miss.max()) < _LOSS_MARGIN:
            break
        z = np.clip(z - (value - targets) / np.maximum(slope, 1e-300), low, high)
    z = np.maximum.accumulate(z)
    return z, float(np.max(np.abs(loss(z)[0] - targets), initial=0.0))
