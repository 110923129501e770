"""Other mechanisms for private running totals, at their published form and at equal privacy.

They exist to be compared with and to be measured: a rival adds noise in floating point, so its releases are
not protected against floating-point attacks. Release with `RunningCounter`.
"""

from evertally.counters.rivals.budgets import FixedBudget, IndependentNoise
from evertally.counters.rivals.matrix import MatrixRival
from evertally.counters.rivals.measurement import Cost, measure_cost
from evertally.counters.rivals.protocol import Normals, Rival, RivalCounter
from evertally.counters.rivals.segments import DoublingTrick, Hybrid, MatrixHybrid
from evertally.counters.rivals.toeplitz import PowerPerturbation, SquareRoot
from evertally.counters.rivals.trees import BinaryTree, SmoothBinary

__all__ = [
    "BinaryTree",
    "Cost",
    "DoublingTrick",
    "FixedBudget",
    "Hybrid",
    "IndependentNoise",
    "MatrixHybrid",
    "MatrixRival",
    "Normals",
    "PowerPerturbation",
    "Rival",
    "RivalCounter",
    "SmoothBinary",
    "SquareRoot",
    "measure_cost",
]
