"""Renyi moments that need no sweep: diagonal Gram matrices, few bins, and the lowest orders of any matrix.

All functions take G / sigma^2 and return log E_Q[(P/Q)^a], rounded up (docs/proofs/renyi.md).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from evertally.accountants.compositions import compositions

__all__ = ["diagonal_log_moments", "direct_log_moments", "enumerated_log_moments", "enumeration_terms"]

FloatArray = NDArray[np.float64]

_UNIT = 2.0**-53
_DISTINCT_MAX = 64


def diagonal_log_moments(diagonal: FloatArray, order_max: int) -> FloatArray:
    """Moments of orders 0..order_max for G = diag(diagonal); any number of bins, any size of entry.

    The moment is a! b^-a times the a-th coefficient of the product over bins of
    f_i(x) = sum_n x^n exp(G_ii n (n - 1) / 2) / n!. Equal factors are raised to their power by repeated
    squaring of log coefficients, all terms positive.
    Beyond 64 distinct entries they are rounded up to 64 of them.
    """
    batches = diagonal.size
    values, counts = _few(diagonal)
    orders = np.arange(order_max + 1, dtype=np.float64)
    log_factorial = gammaln(orders + 1.0)
    product, depth = None, 0
    for value, count in zip(values, counts, strict=True):
        factor = value * orders * (orders - 1.0) / 2.0 - log_factorial
        powered, steps = _log_power(factor, int(count))
        product, depth = (
            (powered, steps) if product is None else (_log_multiply(product, powered), 1 + depth + steps)
        )
    assert product is not None
    size = np.maximum(np.abs(product), log_factorial) + orders * math.log(batches)
    # each product moves a log coefficient by the rounding of its sum and of its exponents; a of them add up
    rounding = (orders * depth * (orders + 8.0 + 4.0 * size) + 8.0 * size) * _UNIT
    return _cut(product + log_factorial - orders * math.log(batches) + rounding)


def enumeration_terms(batches: int, order_max: int) -> int:
    """Count vectors that `enumerated_log_moments` visits."""
    return math.comb(order_max + batches, batches)


def enumerated_log_moments(matrix: FloatArray, order_max: int) -> FloatArray:
    """Moments of orders 0..order_max of any G by visiting every count vector; for few bins."""
    batches = matrix.shape[0]
    moments = np.zeros(order_max + 1)
    diagonal = np.diagonal(matrix)
    for order in range(2, order_max + 1):
        counts = compositions(batches, order).astype(np.float64)
        terms = 0.5 * (np.einsum("ri,ij,rj->r", counts, matrix, counts) - counts @ diagonal)
        terms -= gammaln(counts + 1.0).sum(axis=1)
        top = float(terms.max())
        size = float(matrix.max()) * order * order + math.lgamma(order + 1.0) + order * math.log(batches)
        moments[order] = top + math.log(float(np.exp(terms - top).sum()))
        moments[order] += math.lgamma(order + 1.0) - order * math.log(batches)
        moments[order] += (terms.size + (batches + 8.0) * (4.0 + size)) * 2.0 * _UNIT
    return _cut(moments)


def direct_log_moments(matrix: FloatArray, order_max: int) -> FloatArray:
    """Moments of orders 0..order_max <= 4 of any G by matrix products: b^2, b^3 and b^4 operations."""
    batches = matrix.shape[0]
    peak = float(matrix.max())
    scaled = np.exp(matrix - peak)
    moments = np.zeros(order_max + 1)
    for order in range(2, order_max + 1):
        if order == 2:
            if peak <= 1.0:
                moments[2] = math.log1p(float(np.expm1(matrix).sum()) / batches**2) * (
                    1.0 + (batches + 16) * 4 * _UNIT
                )
                continue
            total = float(scaled.sum())
        elif order == 3:
            total = _triangles(scaled)
        else:
            total = sum(_triangles(np.sqrt(row)[:, None] * scaled * np.sqrt(row)[None, :]) for row in scaled)
        pairs = order * (order - 1) / 2
        moments[order] = math.log(total) + pairs * peak - order * math.log(batches)
        moments[order] += (
            (order * batches + 32 + 8.0 * (pairs * peak + order * math.log(batches))) * 2.0 * _UNIT
        )
    return _cut(moments)


def _triangles(matrix: FloatArray) -> float:
    """sum over i, j, k of M_ij M_jk M_ik."""
    return float(((matrix @ matrix) * matrix).sum())


def _few(diagonal: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    values, counts = np.unique(diagonal, return_counts=True)
    if values.size > _DISTINCT_MAX:
        edges = values[np.linspace(0, values.size - 1, _DISTINCT_MAX + 1).astype(int)[1:]]
        values, counts = np.unique(edges[np.searchsorted(edges, diagonal)], return_counts=True)
    return values, counts


def _log_power(factor: FloatArray, count: int) -> tuple[FloatArray, int]:
    """Log coefficients of the power, and how many products stand on the longest path."""
    result, depth = None, 0
    square, squarings = factor, 0
    while True:
        if count & 1:
            result, depth = (
                (square, squarings) if result is None else (_log_multiply(result, square), 1 + squarings)
            )
        count >>= 1
        if not count:
            assert result is not None
            return result, depth + 1
        square, squarings = _log_multiply(square, square), squarings + 1


def _log_multiply(left: FloatArray, right: FloatArray) -> FloatArray:
    size = left.size
    lag = np.arange(size)[:, None] - np.arange(size)[None, :]
    terms = np.where(lag >= 0, right[np.maximum(lag, 0)], -np.inf) + left[None, :]
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def _cut(moments: FloatArray) -> FloatArray:
    moments[:2] = 0.0
    return np.maximum(moments, 0.0)
