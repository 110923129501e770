"""How a layer's per-example norms are evaluated: three plans, chosen by cost under a memory cap.

Costs are multiply-adds an example for T rows of di inputs and do outputs under dense U_A and U_G:
rank one (T = 1) di^2 + do^2; Gram T (di^2 + do^2) + T^2 (di + do); materialise T di do + do^2 di + do di^2.

Reference: arXiv 2205.10683 (the Gram identity of ghost clipping); the transform's share is this package's.
"""

from __future__ import annotations

from enum import Enum

from evertally.pipelines.training.preconditioner_transforms import Elementwise, Transform

__all__ = ["Plan", "choose_plan", "plan_cost", "plan_memory"]


class Plan(Enum):
    """Where the norm of sum_t d_t a_t^T comes from."""

    RANK_ONE = "rank-one"
    GRAM = "gram"
    MATERIALISE = "materialise"


def plan_cost(plan: Plan, positions: int, inputs: int, outputs: int, transform: Transform) -> int:
    """Multiply-adds an example.

    >>> from evertally.pipelines.training.preconditioner_transforms import Kronecker
    >>> import torch
    >>> dense = Kronecker(torch.eye(2), torch.eye(2))
    >>> plan_cost(Plan.RANK_ONE, 1, 1569, 128, dense)
    2478145
    """
    turn_in, turn_out = _turns(transform)
    if plan is Plan.MATERIALISE:
        raw = positions * inputs * outputs
        return raw + outputs * inputs * ((outputs if turn_out else 1) + (inputs if turn_in else 1))
    turned = positions * (inputs * (inputs if turn_in else 1) + outputs * (outputs if turn_out else 1))
    if plan is Plan.RANK_ONE:
        return turned
    return turned + positions * positions * (inputs + outputs)


def plan_memory(plan: Plan, positions: int, inputs: int, outputs: int) -> int:
    """Elements an example that a plan allocates beyond its rows."""
    if plan is Plan.RANK_ONE:
        return inputs + outputs
    if plan is Plan.GRAM:
        return 2 * positions * positions + positions * (inputs + outputs)
    return 2 * inputs * outputs


def choose_plan(
    positions: int, inputs: int, outputs: int, transform: Transform, *, memory_elements: int
) -> Plan:
    """The cheapest plan whose memory for one example fits; where none fits, the smallest.

    An elementwise transform has no Gram form, so T > 1 is materialised.
    """
    if positions == 1:
        return Plan.RANK_ONE
    if isinstance(transform, Elementwise):
        return Plan.MATERIALISE
    plans = [Plan.GRAM, Plan.MATERIALISE]
    fitting = [p for p in plans if plan_memory(p, positions, inputs, outputs) <= memory_elements]
    if fitting:
        return min(fitting, key=lambda p: plan_cost(p, positions, inputs, outputs, transform))
    return min(plans, key=lambda p: plan_memory(p, positions, inputs, outputs))


def _turns(transform: Transform) -> tuple[bool, bool]:
    """Whether inputs and outputs are multiplied by a full matrix."""
    if isinstance(transform, Elementwise):
        return False, False
    return (
        transform.right is not None and transform.right.dim() == 2,
        transform.left is not None and transform.left.dim() == 2,
    )
