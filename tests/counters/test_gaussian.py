"""Exactly rounded Gaussians: certified quantile, injected blocks on both sides of boundaries."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from evertally.counters import gaussian
from evertally.counters.gaussian import exact_gaussians
from evertally.errors import IntegrityError


def no_more(index: int, lane: int) -> int:
    raise AssertionError(f"draw {index} asked for lane {lane}")


def draw(bits: int, *, sign: int = 0, more: int | None = None) -> int:
    """The draw of one 127-bit tail probability."""
    high = np.array([(sign << 63) | (bits >> 64)], dtype=np.uint64)
    low = np.array([bits & (2**64 - 1)], dtype=np.uint64)
    return int(exact_gaussians(high, low, no_more if more is None else lambda _i, _l: more)[0])


def boundary(n: int, digits: int = 120) -> int:
    """floor of 2^128 Q((n + 1/2) 2^-30): the last bits that still round above n."""
    with mpmath.workdps(digits):
        x = mpmath.mpf(2 * n + 1) / mpmath.mpf(2) ** 31
        return int(mpmath.floor(mpmath.erfc(x / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** 128))


@pytest.mark.parametrize("n", [0, 1, 12345, 2**30, 3 * 2**30 + 7, 5 * 2**30, 7 * 2**30 + 1, 2**33])
def test_blocks_beside_a_boundary_round_to_their_side(n: int) -> None:
    edge = boundary(n)
    assert draw(edge - 1) == n + 1
    assert draw(edge + 1) == n
    assert draw(edge + 1, sign=1) == -n


@pytest.mark.parametrize("n", [0, 2**30 + 3, 4 * 2**30])
def test_a_straddled_boundary_takes_the_second_lane(n: int) -> None:
    edge = boundary(n)
    with mpmath.workdps(200):
        x = mpmath.mpf(2 * n + 1) / mpmath.mpf(2) ** 31
        rest = mpmath.erfc(x / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** 128 - edge
        split = int(mpmath.floor(rest * mpmath.mpf(2) ** 128))
    assert draw(edge, more=split - 1) == n + 1
    assert draw(edge, more=split + 1) == n
    with pytest.raises(AssertionError, match="lane 1"):
        draw(edge)


def test_extreme_blocks_give_finite_draws() -> None:
    # u = 0 with an all-zero first block needs a second one; Q^-1(2^-129) = 13.106...
    assert draw(0, more=2**127) == 14075280179
    assert draw(0, sign=1, more=2**127) == -14075280179
    assert draw(2**127 - 1) == 0
    assert draw(2**127 - 1, sign=1) == 0


def test_bits_that_never_decide_are_refused() -> None:
    with pytest.raises(IntegrityError):
        draw(0, more=0)


@pytest.mark.slow
def test_fast_path_equals_the_exact_path() -> None:
    state = np.random.default_rng(20260101)
    high, low = state.integers(0, 2**64, (2, 3000), dtype=np.uint64)
    fast = exact_gaussians(high, low, no_more)
    for h, lo, got in zip(high.tolist(), low.tolist(), fast.tolist(), strict=True):
        magnitude = gaussian._decide(((h & (2**63 - 1)) << 64) | lo, 128)
        assert magnitude is not None
        assert got == (-magnitude if h >> 63 else magnitude)


def test_rounding_alone_is_not_enough() -> None:
    """On the boundary's own float neighbourhood, rint of the quantile errs; the exact path does not."""
    wrong = 0
    for n in range(2**30, 2**30 + 400):
        edge = boundary(n, 60)
        for bits, right in ((edge - 1, n + 1), (edge + 1, n)):
            assert draw(bits) == right
            wrong += int(np.rint(-float(ndtri(((bits >> 64) + 0.5) * 2.0**-64)) * 2.0**30)) != right
    assert wrong > 100


def test_mpmath_precision_is_left_alone() -> None:
    before = mpmath.mp.prec
    draw(boundary(5) + 1)
    assert mpmath.mp.prec == before


@pytest.mark.slow
def test_quantile_error_is_within_its_certified_bound() -> None:
    """1e6 points against ball arithmetic.

    |x - Q^-1(p)| <= e = 2^-46 max(1, x) follows from |Q(x) - p| <= e phi(x + e), since phi falls for x >= 0.
    """
    flint = pytest.importorskip("flint")
    flint.ctx.prec = 90
    arb, root = flint.arb, flint.arb(2).sqrt()
    # a deterministic low-discrepancy set: half uniform in p, half uniform in log p down to 2^-44
    golden = np.modf(np.arange(1, 500_001) * 0.6180339887498949)[0]
    points = np.maximum(np.concatenate([0.5 * golden, np.exp2(-1 - 43 * golden)]), 2.0**-44)
    quantiles = -ndtri(points)
    errors = 2.0**-46 * np.maximum(1.0, quantiles)
    allowed = 0.999 * errors * np.exp(-0.5 * (quantiles + errors) ** 2) / np.sqrt(2 * np.pi)
    for p, x, limit in zip(points.tolist(), quantiles.tolist(), allowed.tolist(), strict=True):
        assert abs((arb(x) / root).erfc() / 2 - arb(p)) <= limit
