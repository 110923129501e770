"""The certified lower bound, also where the strategy has signs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evertally.accountants import colour, lower_bound
from evertally.accountants.gaussian import gaussian_delta
from evertally.accountants.gram import Gram
from evertally.accountants.lower_triangular import LowerTriangular
from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import (
    BandedInverseSquareRoot,
    BandedSquareRoot,
    Identity,
)

SIGNED = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])


def test_mixed_signs_speak_of_the_mechanism() -> None:
    """k = 3, b = 1: the Gram matrix of |C| is 14, the mechanism itself has mu^2 = 10."""
    gram = LowerTriangular(SIGNED).gram(BallsInBins(batches=1, epochs=3))
    assert gram.maximum == pytest.approx(14.0)
    found = lower_bound.delta(gram, 3.0, 0.5)
    assert found.scope == "mechanism"
    assert found.value == pytest.approx(gaussian_delta(0.5, math.sqrt(10.0) / 3.0), rel=1e-2)
    assert found.value <= gaussian_delta(0.5, math.sqrt(10.0) / 3.0)


def _grams() -> list[Gram]:
    scheme = BallsInBins(batches=50, epochs=4)
    return [s.gram(scheme) for s in (Identity(), BandedSquareRoot(4), BandedInverseSquareRoot(4))]


@pytest.mark.slow
@pytest.mark.parametrize("gram", _grams(), ids=["identity", "bsr", "bisr"])
@pytest.mark.parametrize("sigma", [0.05, 1.0, 4.0, 100.0])
def test_lower_never_crosses_upper(gram: Gram, sigma: float) -> None:
    for epsilon in (0.0, 0.1, 1.0, 10.0):
        upper = max(colour.delta(gram, sigma, epsilon, d) for d in ("remove", "add"))
        assert 0.0 <= lower_bound.delta(gram, sigma, epsilon).value <= upper
    for delta in (1e-2, 1e-8):
        upper = max(colour.epsilon(gram, sigma, delta, d) for d in ("remove", "add"))
        assert 0.0 <= lower_bound.epsilon(gram, sigma, delta).value <= upper


def test_nonnegative_strategies_speak_of_the_dominating_pair() -> None:
    assert lower_bound.delta(_grams()[1], 4.0, 1.0).scope == "dominating pair"


def test_directions_alone() -> None:
    gram = _grams()[0]
    both = lower_bound.delta(gram, 1.0, 1.0).value
    each = [lower_bound.delta(gram, 1.0, 1.0, directions=(d,)).value for d in ("remove", "add")]
    assert both == max(each)


def test_identity_is_tight() -> None:
    gram = _grams()[0]
    upper = colour.delta(gram, 2.0, 1.0, "remove", 1)
    assert upper / lower_bound.delta(gram, 2.0, 1.0).value < 1.01
