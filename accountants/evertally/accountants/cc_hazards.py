"""Hazards of conditional composition: how well past rows can point at the bin of a record.

At row n the bins are ordered by their mean m_{i,n}; bins of mean zero form one group. For a bin i with a
positive mean and the set J of bins before it,
    P(z = i | z in J + {i}, y_<n) = 1/(1 + |J| e^{L_i}),   L_i = log p(y_<n | z in J)/p(y_<n | z = i).
A test gives a threshold tau with P(L_i < tau) <= target, hence a hazard 1/(1 + |J| e^tau) that holds outside
an event of that probability. By Jensen, for any distribution psi on J fixed in advance,
    L_i >= sum_j psi_j (<m_j - m_i, y>/s^2 - (|m_j|^2 - |m_i|^2)/2 s^2) - KL(psi, uniform),
which is Gaussian given the true bin. The event is measured under the first argument of the divergence: y
follows the mixture P for "remove" and the noise alone for "add". Only A = (nu + KL) s^2, X = xi s and KL
are needed to solve for tau; they do not depend on the noise and are computed once for a strategy.

Reference: arXiv 2601.21636, section 5, corrected; docs/proofs/conditional-composition.md.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from evertally.accountants.gram import Gram

__all__ = ["TEMPERATURES", "HazardTests", "dense_tests", "identity_tests", "prepare"]

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

TEMPERATURES = (math.inf, 0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
"""psi_j is proportional to exp(-|m_i - m_j|^2 / T) over the past rows; infinity is uniform."""

_BISECTIONS = 60
_OPERATIONS_A_SECOND = 4e9
_MEANS_MAX = 2e7
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class HazardTests:
    """The tests of one strategy, for all noise levels and both directions.

    Attributes:
        rows: N, rows of the strategy.
        row: row of each test (0-based), shape (tests,).
        mean: m_{i,n} of the tested bin, shape (tests,); tests of a row stand in falling order of mean.
        before: |J|, bins before the tested one, shape (tests,).
        informed: whether past rows say anything; otherwise L_i = 0 exactly and no test is made.
        mean_remove: A for each true bin (or group of them), shape (tests, temperatures, groups).
        weight: probability of each group, shape (tests, groups), rows summing to 1.
        mean_add: A under the noise alone, shape (tests, temperatures).
        spread: X, shape (tests, temperatures).
        divergence: KL(psi, uniform on J), shape (tests, temperatures).
    """

    rows: int
    row: IntArray
    mean: Array
    before: IntArray
    informed: NDArray[np.bool_]
    mean_remove: Array
    weight: Array
    mean_add: Array
    spread: Array
    divergence: Array

    @property
    def count(self) -> int:
        """Number of tests made: the probability of a bad event is shared among them."""
        return int(np.count_nonzero(self.informed))

    def thresholds(self, sigma: float, target: float, direction: str) -> Array:
        """tau with P(bound on L_i < tau) <= target, shape (tests, temperatures)."""
        xi = self.spread / sigma
        if direction == "add":
            nu = self.mean_add / sigma**2 - self.divergence
            tau = nu + xi * float(ndtri(target * (1.0 - 1e-9)))
        else:
            nus = self.mean_remove / sigma**2 - self.divergence[:, :, None]
            tau = _mixture_quantile(nus, xi, self.weight[:, None, :], target * (1.0 - 1e-9))
        return np.asarray(tau - 1e-12 * (1.0 + np.abs(tau)))

    def hazards(self, sigma: float, bad_event: float, direction: str) -> Array:
        """Upper bounds on the hazard of each test that hold together but for probability `bad_event`.

        Without information (the first row) the hazard 1/(1 + |J|) is exact.
        """
        log_before = np.log(np.maximum(self.before, 1e-300))
        tau = np.zeros(len(self.row))
        if self.count:
            tau = self.thresholds(sigma, bad_event / self.count, direction).max(axis=1)
        odds = np.where(self.informed, tau, 0.0) + log_before
        odds[self.before == 0] = -700.0
        return np.asarray(np.minimum(1.0, (1.0 + 1e-12) / (1.0 + np.exp(np.clip(odds, -700.0, 700.0)))))


def prepare(
    gram: Gram, temperatures: tuple[float, ...] = TEMPERATURES, time_budget_s: float = 30.0
) -> HazardTests | None:
    """The tests of a strategy, or None where they would take longer than `time_budget_s`."""
    if gram.is_identity:
        return identity_tests(gram.batches, gram.epochs, temperatures)
    rows = gram.batches * gram.epochs
    operations = 2.0 * rows * gram.batches**2 * len(temperatures)
    if rows * gram.batches > _MEANS_MAX or operations > _OPERATIONS_A_SECOND * time_budget_s:
        return None
    return dense_tests(gram.step_means(), temperatures, time.monotonic() + time_budget_s)


def identity_tests(batches: int, epochs: int, temperatures: tuple[float, ...] = TEMPERATURES) -> HazardTests:
    """The tests of C = I in closed form: the other bins are of two kinds, passed in this epoch or not."""
    rows = batches * epochs
    row = np.arange(rows)
    passed = (row % batches).astype(np.float64)[:, None]
    open_ = batches - 1.0 - passed
    norm = (row // batches).astype(np.float64)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.exp(-1.0 / np.array(temperatures))[None, :]
        psi_open = np.where(open_ + passed > 0, 1.0 / (open_ + ratio * passed), 0.0)
        psi_passed = np.where(open_ + passed > 0, ratio * psi_open, 0.0)
        kl = _entropy_term(open_, psi_open, batches) + _entropy_term(passed, psi_passed, batches)
    average = passed * psi_passed * (norm + 1.0) + open_ * psi_open * norm
    offset = -(average - norm) / 2.0 - _ROUNDING * (norm + 1.0)
    groups = np.stack(
        [psi_passed * (norm + 1.0), psi_open * norm, np.broadcast_to(-norm, psi_open.shape)], axis=2
    )
    spread = np.sqrt(passed * psi_passed**2 * (norm + 1.0) + open_ * psi_open**2 * norm + norm)
    return HazardTests(
        rows=rows,
        row=row,
        mean=np.ones(rows),
        before=np.full(rows, batches - 1),
        informed=(row > 0) & (batches > 1),
        mean_remove=groups + offset[:, :, None],
        weight=np.concatenate([passed, open_, np.ones_like(passed)], axis=1) / batches,
        mean_add=offset,
        spread=spread,
        divergence=np.maximum(kl, 0.0),
    )


def dense_tests(
    means: Array, temperatures: tuple[float, ...] = TEMPERATURES, deadline: float = math.inf
) -> HazardTests | None:
    """The tests of any strategy from its (rows, b) array of means; None when the deadline passes."""
    rows, b = means.shape
    edges = np.unique(np.concatenate([[0], 2 ** np.arange(int(math.log2(b)) + 1), [b]]))
    starts, sizes = edges[:-1], np.diff(edges)
    gram = np.zeros((b, b))
    found: list[tuple[int, float, int, bool, Array, Array, Array, Array]] = []
    for n in range(rows):
        if time.monotonic() > deadline:
            return None
        positive = np.flatnonzero(means[n] > 0.0)
        order = positive[np.argsort(-means[n, positive], kind="stable")]
        before = np.ones(b, dtype=bool)
        diagonal = np.diagonal(gram)
        for i in order:
            before[i] = False
            psi, kl = _softmin(diagonal[i] + diagonal - 2.0 * gram[i], before, temperatures)
            mixed = psi @ gram
            offset = -(psi @ diagonal - diagonal[i]) / 2.0 - _ROUNDING * float(diagonal.max())
            shifts = np.sort(mixed - gram[i][None, :] + offset[:, None], axis=1)
            square = np.einsum("tb,tb->t", mixed, psi) - 2.0 * mixed[:, i] + diagonal[i]
            # square is rounded up a little: more spread is the safe side
            spread = np.sqrt(np.maximum(square, 0.0) + 1e-14 * (diagonal[i] + np.abs(mixed[:, i])))
            found.append(
                (
                    n,
                    float(means[n, i]),
                    int(before.sum()),
                    bool(gram.any() and before.any()),
                    shifts[:, starts],
                    offset,
                    spread,
                    kl,
                )
            )
        column = means[n, positive]
        gram[np.ix_(positive, positive)] += np.outer(column, column)
    tests = list(zip(*found, strict=True))
    return HazardTests(
        rows=rows,
        row=np.array(tests[0]),
        mean=np.array(tests[1]),
        before=np.array(tests[2]),
        informed=np.array(tests[3]),
        mean_remove=np.array(tests[4]),
        weight=np.broadcast_to(sizes / b, (len(found), len(sizes))),
        mean_add=np.array(tests[5]),
        spread=np.array(tests[6]),
        divergence=np.array(tests[7]),
    )


def _softmin(
    distances: Array, before: NDArray[np.bool_], temperatures: tuple[float, ...]
) -> tuple[Array, Array]:
    """psi at each temperature, shape (temperatures, b), zero outside `before`; and its divergence."""
    size = int(before.sum())
    psi = np.zeros((len(temperatures), len(before)))
    if not size:
        return psi, np.zeros(len(temperatures))
    exponents = -(distances[before] - distances[before].min())[None, :] / np.array(temperatures)[:, None]
    weights = np.exp(exponents)
    weights /= weights.sum(axis=1, keepdims=True)
    psi[:, before] = weights
    terms = np.where(weights > 0.0, weights * np.log(np.maximum(weights * size, 1e-300)), 0.0)
    return psi, np.maximum(terms.sum(axis=1), 0.0)


def _entropy_term(count: Array, psi: Array, batches: int) -> Array:
    """sum of psi log(psi |J|) over `count` equal bins."""
    inner = np.maximum(psi * max(batches - 1, 1), 1e-300)
    return np.asarray(np.where((count > 0) & (psi > 0), count * psi * np.log(inner), 0.0))


def _mixture_quantile(nus: Array, xi: Array, weight: Array, target: float) -> Array:
    """Largest tau found with sum_k weight_k Phi((tau - nu_k)/xi) <= target (where xi = 0: the least nu)."""
    quantile = float(ndtri(target))
    low = nus.min(axis=2) + xi * quantile
    high = nus.max(axis=2) + xi * quantile
    safe = np.maximum(xi, 1e-300)[:, :, None]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        admitted = np.sum(weight * ndtr((middle[:, :, None] - nus) / safe), axis=2) <= target
        low, high = np.where(admitted, middle, low), np.where(admitted, high, middle)
        if float(np.max(high - low, initial=0.0)) < 1e-10:
            break
    return np.where(xi > 0.0, low, nus.min(axis=2))
