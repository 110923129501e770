"""Deterministic privacy accounting of matrix mechanisms under random allocation.

Every figure is the smallest of several proved upper bounds, with its source, a certified lower bound and the gap.
"""

from evertally.accountants.accountant import Account, account, calibrate_noise_multiplier
from evertally.accountants.bound import Bound
from evertally.accountants.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_noise_multiplier,
)
from evertally.accountants.participation import BallsInBins, CyclicPoisson, EachEpochOnce, Poisson
from evertally.accountants.renyi import ledger_renyi, renyi_divergence
from evertally.accountants.strategies import (
    BLT,
    BandedInverseMF,
    BandedInverseSquareRoot,
    BandedSquareRoot,
    BandMF,
    Identity,
    LowerTriangular,
)

__all__ = [
    "Account",
    "BLT",
    "BallsInBins",
    "BandMF",
    "BandedInverseMF",
    "BandedInverseSquareRoot",
    "BandedSquareRoot",
    "Bound",
    "CyclicPoisson",
    "EachEpochOnce",
    "Identity",
    "LowerTriangular",
    "Poisson",
    "account",
    "calibrate_noise_multiplier",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_noise_multiplier",
    "ledger_renyi",
    "renyi_divergence",
]
