"""Every rival as a mechanism: privacy of what it really does, variance of what it really adds."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from evertally.counters.keys import KeyedNoise, NoiseKey
from evertally.counters.rational import Rational
from evertally.counters.rivals import (
    BinaryTree,
    DoublingTrick,
    FixedBudget,
    Hybrid,
    IndependentNoise,
    MatrixHybrid,
    MatrixRival,
    PowerPerturbation,
    Rival,
    RivalCounter,
    SmoothBinary,
    SquareRoot,
)
from evertally.counters.yardstick import yardstick, yardstick_variance
from evertally.errors import InvalidParameter

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

N = 32
RIVALS: dict[str, Callable[[], Rival]] = {
    "binary tree": lambda: BinaryTree(N),
    "binary tree, n no power of two": lambda: BinaryTree(N - 3),
    "smooth binary": lambda: SmoothBinary(N),
    "hybrid": Hybrid,
    "doubling": DoublingTrick,
    "independent": IndependentNoise,
    "fixed budget": FixedBudget,
    "matrix hybrid": lambda: MatrixHybrid(Rational.preset("W32")),
    "square root": lambda: MatrixRival(SquareRoot(N), "square root"),
    "power": lambda: MatrixRival(PowerPerturbation(0.1), "power"),
    "rational": lambda: MatrixRival(Rational.preset("W32"), "W32"),
}
EVERY_RIVAL = pytest.mark.parametrize("make", RIVALS.values(), ids=RIVALS.keys())


class UnitDraws:
    """Key j sees one unit draw, the j-th, and zeros elsewhere: the noise it gets is column j of B."""

    def __init__(self, draws: int) -> None:
        self.keys = draws

    def block(self, first: int, count: int) -> IntArray:
        index = np.arange(first - 1, first - 1 + count)[:, None]
        return np.where(index == np.arange(self.keys), np.int64(2**30), np.int64(0))


def decoder(rival: Rival, ticks: int) -> FloatArray:
    """B with noise = B (draws), shape (ticks, draws), read off the running mechanism."""
    return np.array(list(itertools.islice(rival.noise(UnitDraws(4 * ticks)), ticks)))


def exact_mu_squared(b: FloatArray) -> float:
    """Largest squared distance of two neighbouring output means in the metric of the noise B B^T.

    The released vector is N(S, B B^T); an item at tick t shifts its mean by d_t = (0..0,1..1).
    """
    shifts = np.tril(np.ones((len(b), len(b))))
    solution, *_ = np.linalg.lstsq(b, shifts, rcond=None)
    np.testing.assert_allclose(b @ solution, shifts, atol=1e-6)
    return float((solution**2).sum(axis=0).max())


@EVERY_RIVAL
def test_what_runs_has_at_most_unit_privacy_loss(make: Callable[[], Rival]) -> None:
    rival = make()
    ticks = min(N, rival.horizon or N)
    assert exact_mu_squared(decoder(rival, ticks)) <= 1.0 + 1e-6


@pytest.mark.parametrize(
    "name", ["independent", "square root", "doubling", "smooth binary", "rational", "power"]
)
def test_no_rival_is_weakened(name: str) -> None:
    """mu^2 is all used; rational and power keep some for later ticks, 33 of 70 balanced leaves are in use."""
    floor = {"rational": 0.45, "power": 0.35, "smooth binary": 0.45}.get(name, 1.0 - 1e-6)
    assert exact_mu_squared(decoder(RIVALS[name](), N)) >= floor


def test_the_audit_catches_noise_that_is_too_small() -> None:
    assert exact_mu_squared(0.9 * decoder(BinaryTree(N), N)) > exact_mu_squared(decoder(BinaryTree(N), N))
    assert exact_mu_squared(0.9 * decoder(IndependentNoise(), N)) > 1.2


@EVERY_RIVAL
def test_variance_is_that_of_what_runs(make: Callable[[], Rival]) -> None:
    rival = make()
    ticks = min(N, rival.horizon or N)
    measured = (decoder(rival, ticks) ** 2).sum(axis=1)
    want = [rival.variance(t) for t in range(1, ticks + 1)]
    np.testing.assert_allclose(measured, want, rtol=1e-6)


@pytest.mark.slow
@EVERY_RIVAL
def test_measured_variance_over_many_streams(make: Callable[[], Rival]) -> None:
    """4,000 streams of exact draws under one fixed key.

    The mean of 4,000 squares has relative standard error sqrt(2/4000) = 2.24 %; at 6 standard errors and
    5 ticks a correct mechanism fails with probability below 1e-7 (chi-square with 4,000 degrees of freedom).
    """
    rival = make()
    key = NoiseKey(bytes(range(32)), stream="rivals", stream_id=bytes(16))
    counter = RivalCounter(rival, KeyedNoise(key, range(4000)))
    ticks = min(N, rival.horizon or N)
    zero = np.zeros(4000)
    for t in range(1, ticks + 1):
        noise = counter.step(zero)
        if t in (1, 2, 13, 16, ticks):
            assert float((noise**2).mean()) == pytest.approx(rival.variance(t), rel=6 * math.sqrt(2 / 4000))


@EVERY_RIVAL
def test_releases_are_the_totals_plus_noise(make: Callable[[], Rival]) -> None:
    rival = make()
    ticks = min(N, rival.horizon or N)
    key = NoiseKey(bytes(32), stream="totals", stream_id=bytes(16))
    rng = np.random.default_rng(7)
    items = rng.integers(0, 9, size=(ticks, 3)).astype(float)
    quiet, loud = (RivalCounter(rival, KeyedNoise(key, range(3))) for _ in range(2))
    for t in range(ticks):
        difference = loud.step(items[t]) - quiet.step(np.zeros(3))
        np.testing.assert_allclose(difference, items[: t + 1].sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("rival", [BinaryTree(5), SmoothBinary(5), MatrixRival(SquareRoot(5), "sqrt")])
def test_a_known_horizon_is_kept(rival: Rival) -> None:
    counter = RivalCounter(rival, KeyedNoise(NoiseKey.generate("s")))
    for _ in range(5):
        counter.step(np.zeros(1))
    with pytest.raises(InvalidParameter, match="t: got 6"):
        counter.step(np.zeros(1))
    with pytest.raises(InvalidParameter, match="t:"):
        rival.variance(6)


# Variance at 2^12, 2^16, 2^20, 2^24 at unit privacy: means for the tree (n = t) and the hybrid.
# The square root's are V_t^2; the tree's (log n + 1) log n / 2; the smooth binary's h^2/4, h = 16 .. 28.
GOLDEN = {
    "square root": (13.8, 21.1, 30.0, 40.5),
    "tree": (78, 136, 210, 300),
    "hybrid": (156, 272, 420, 600),
    "smooth": (64, 100, 144, 196),
    "W32": (20.8, 31.8, 45.3, 61.2),
    "H40": (27.9, 42.8, 60.6, 81.8),
}
AT: dict[str, Callable[[int], float]] = {
    "square root": lambda t: MatrixRival(SquareRoot(t), "").quoted_variance(t),
    "tree": lambda t: BinaryTree(t).quoted_variance(t),
    "hybrid": lambda t: Hybrid().quoted_variance(t),
    "smooth": lambda t: SmoothBinary(t).quoted_variance(t),
    "W32": lambda t: MatrixRival(Rational.preset("W32"), "").quoted_variance(t),
    "H40": lambda t: MatrixRival(Rational.preset("H40"), "").quoted_variance(t),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_variances(name: str) -> None:
    for t, want in zip((2**12, 2**16, 2**20, 2**24), GOLDEN[name], strict=True):
        assert AT[name](t) == pytest.approx(want, abs=0.051)


def test_quoted_means_are_means() -> None:
    tree = BinaryTree(2**10)
    assert np.mean([tree.variance(t) for t in range(1, 2**10)]) == pytest.approx(
        tree.quoted_variance(2**10), rel=2e-3
    )
    hybrid = Hybrid()
    segment = [hybrid.variance(t) for t in range(2**9 + 1, 2**10 + 1)]
    assert np.mean(segment) == pytest.approx(hybrid.quoted_variance(2**10), rel=1e-3)


def test_doubling_pays_for_every_closed_segment() -> None:
    doubling = DoublingTrick()
    assert doubling.variance(1) == 1.0
    assert doubling.variance(2**12 - 1) == pytest.approx(sum(yardstick_variance(2**j) for j in range(12)))
    assert doubling.variance(2**12) - doubling.variance(2**12 - 1) == pytest.approx(yardstick(2**12))


def test_smooth_binary_needs_enough_balanced_leaves() -> None:
    assert SmoothBinary(5).height == 4
    assert SmoothBinary(6).height == 6
    assert [SmoothBinary(2**k).height for k in (12, 16, 20, 24)] == [16, 20, 24, 28]


def test_the_shares_of_the_fixed_budget_stay_below_one() -> None:
    spent = sum(1.0 / FixedBudget().variance(t) for t in range(1, 20000))
    assert 0.85 < spent < 1.0
    # The rest of the series is below its integral.
    z = FixedBudget().variance(1)
    assert spent + 1.0 / (z * (1.0 + math.log(20000))) >= 1.0 - 1e-6


@pytest.mark.parametrize("ticks", [0, -3, 1.5, True, float("inf")])
@pytest.mark.parametrize("family", [BinaryTree, SmoothBinary, SquareRoot])
def test_bad_horizons_are_refused(family: Callable[[object], object], ticks: object) -> None:
    with pytest.raises(InvalidParameter, match="ticks"):
        family(ticks)


@pytest.mark.parametrize("exponent", [0.0, -0.1, 0.5, 1.0, float("nan"), 5e-324, True, "x"])
def test_bad_exponents_are_refused(exponent: float) -> None:
    with pytest.raises(InvalidParameter, match="exponent"):
        PowerPerturbation(exponent)


def test_power_sensitivity_is_the_infinite_sum() -> None:
    """Partial sums approach the closed form like n^(-2a)/(2a Gamma(p)^2), p = 1/2 - a."""
    power = PowerPerturbation(0.2)
    n = 2**16
    r = power.strategy_coefficients(n)
    tail = n ** (-0.4) / (0.4 * math.gamma(0.3) ** 2)
    assert power.sensitivity_squared() == pytest.approx(float(r @ r) + tail, rel=1e-5)
    pair = float(r[:-7] @ r[7:])
    want = 2.0 * power.sensitivity_squared() + 2.0 * (pair + tail)
    assert power.sensitivity_squared(2, 7) == pytest.approx(want, rel=1e-4)
    assert power.sensitivity_squared(horizon=100) == pytest.approx(float(r[:100] @ r[:100]), rel=1e-9)


def test_square_root_patterns_against_brute_force() -> None:
    """All patterns of at most k ticks at least b apart, contributions of either sign."""
    n, k, b = 12, 3, 2
    r = SquareRoot(n).strategy_coefficients(n)
    matrix = np.array([[r[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    worst = 0.0
    for size in range(1, k + 1):
        for ticks in itertools.combinations(range(n), size):
            if all(y - x >= b for x, y in itertools.pairwise(ticks)):
                for signs in itertools.product((1.0, -1.0), repeat=size):
                    worst = max(worst, float(((matrix[:, ticks] @ signs) ** 2).sum()))
    assert SquareRoot(n).sensitivity_squared(k, b) == pytest.approx(worst, rel=1e-10)
    assert SquareRoot(n).sensitivity_squared(k, b) >= worst
    assert SquareRoot(n).sensitivity_squared(100, b) == SquareRoot(n).sensitivity_squared(6, b)
