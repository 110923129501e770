"""Preloaded by the process that runs are forked from: what takes seconds to import or to compile is there."""

from __future__ import annotations

import tests.training.training_crashes  # noqa: F401 - the children's target
import torch

from evertally.accountants import BallsInBins, BandedSquareRoot, account
from evertally.accountants.budget import Scope
from evertally.pipelines.training.plan import line_of

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(False)
_SCHEME = BallsInBins(8, 2)
line_of(BandedSquareRoot(3), _SCHEME, "4.0").loss(
    Scope("people", "event", "add-remove", 8, 1e-5, filter="renyi", order=8)
)
account(BandedSquareRoot(3), _SCHEME, 4.0 * (1.0 - 2.0**-52)).epsilon(delta=1e-5)
