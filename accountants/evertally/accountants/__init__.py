"""Deterministic privacy accounting of matrix mechanisms under random allocation.

Every figure is the smallest of several proved upper bounds, with its source, a certified lower bound and
the gap.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from evertally.accountants.accountant import Account, account
    from evertally.accountants.bound import Bound
    from evertally.accountants.calibration import calibrate_noise_multiplier
    from evertally.accountants.gaussian import (
        gaussian_delta,
        gaussian_epsilon,
        gaussian_mu,
        gaussian_noise_multiplier,
    )
    from evertally.accountants.lower_triangular import LowerTriangular
    from evertally.accountants.participation import BallsInBins, CyclicPoisson, EachEpochOnce, Poisson
    from evertally.accountants.renyi import ledger_renyi, renyi_divergence
    from evertally.accountants.strategies import (
        BLT,
        BandedInverseMF,
        BandedInverseSquareRoot,
        BandedSquareRoot,
        BandMF,
        Identity,
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

_HOMES: Final = {
    "Account": "accountant",
    "BLT": "strategies",
    "BallsInBins": "participation",
    "BandMF": "strategies",
    "BandedInverseMF": "strategies",
    "BandedInverseSquareRoot": "strategies",
    "BandedSquareRoot": "strategies",
    "Bound": "bound",
    "CyclicPoisson": "participation",
    "EachEpochOnce": "participation",
    "Identity": "strategies",
    "LowerTriangular": "lower_triangular",
    "Poisson": "participation",
    "account": "accountant",
    "calibrate_noise_multiplier": "calibration",
    "gaussian_delta": "gaussian",
    "gaussian_epsilon": "gaussian",
    "gaussian_mu": "gaussian",
    "gaussian_noise_multiplier": "gaussian",
    "ledger_renyi": "renyi",
    "renyi_divergence": "renyi",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module on first use: a ledger or a pipeline needs few of them, and fast."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"evertally.accountants.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
