"""Optimisers follow their formulas, resume exactly and touch nothing but the parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.training.interfaces import PrivateOptimizer
from evertally.pipelines.training.optimizers import Disk, DpAdamBC, Momentum

pytestmark = pytest.mark.train

MAKERS: list[Callable[[nn.Module], PrivateOptimizer]] = [
    lambda model: Momentum(model, rate=0.1),
    lambda model: DpAdamBC(model, rate=0.01, noise_std=0.2),
    lambda model: Disk(model, rate=0.1),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False)).double()


def gradients(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "0.weight": torch.randn(2, 3, generator=generator, dtype=torch.float64),
        "0.bias": torch.randn(2, generator=generator, dtype=torch.float64),
    }


def test_momentum_by_hand() -> None:
    ours = model()
    before = ours.get_parameter("0.weight").detach().clone()
    optimizer = Momentum(ours, rate=0.1, momentum=0.9)
    velocity, expected = torch.zeros(2, 3, dtype=torch.float64), before
    for seed in range(4):
        optimizer.step(gradients(seed))
        velocity = 0.9 * velocity + gradients(seed)["0.weight"]
        expected = expected - 0.1 * velocity
    assert torch.allclose(ours.get_parameter("0.weight"), expected, rtol=1e-12)


def test_without_noise_it_is_adam() -> None:
    """With no variance to subtract and a floor below every moment: arXiv 1412.6980, Algorithm 1."""
    ours = model()
    expected = ours.get_parameter("0.weight").detach().clone()
    optimizer = DpAdamBC(ours, rate=0.01, noise_std=0.0, floor=1e-12)
    first = second = torch.zeros(2, 3, dtype=torch.float64)
    for t in range(1, 5):
        optimizer.step(gradients(t))
        gradient = gradients(t)["0.weight"]
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        expected = expected - 0.01 * (first / (1 - 0.9**t)) / (second / (1 - 0.999**t)).sqrt()
    assert torch.allclose(ours.get_parameter("0.weight"), expected, rtol=1e-9)


def test_bias_correction_by_hand() -> None:
    ours = model()
    before = ours.get_parameter("0.bias").detach().clone()
    optimizer = DpAdamBC(ours, rate=0.01, noise_std=0.5, betas=(0.9, 0.99), floor=0.1)
    gradient = {"0.weight": torch.zeros(2, 3), "0.bias": torch.tensor([1.0, 0.2])}
    optimizer.step(gradient)
    # corrected second moments: 1 - 0.25 = 0.75, and 0.04 - 0.25 < 0.1^2
    expected = before - 0.01 * torch.tensor([1.0 / 0.75**0.5, 0.2 / 0.1], dtype=torch.float64)
    assert torch.allclose(ours.get_parameter("0.bias"), expected, rtol=1e-6)


def test_filter_by_hand() -> None:
    ours = model()
    before = ours.get_parameter("0.bias").detach().clone()
    optimizer = Disk(ours, rate=1.0, gain=0.25)
    for value in (1.0, 2.0):
        optimizer.step({"0.weight": torch.zeros(2, 3), "0.bias": torch.full((2,), value)})
    assert torch.allclose(ours.get_parameter("0.bias"), before - 1.0 - 1.25)


@pytest.mark.parametrize("make", MAKERS)
def test_resume_is_exact(make: Callable[[nn.Module], PrivateOptimizer]) -> None:
    straight, broken = model(), model()
    one, other = make(straight), make(broken)
    for seed in range(3):
        one.step(gradients(seed))
        other.step(gradients(seed))
    state = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    resumed = make(broken)
    resumed.load_state_dict(state)
    for seed in range(3, 6):
        one.step(gradients(seed))
        resumed.step(gradients(seed))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), broken.parameters(), strict=True))
    assert all(p.grad is None for p in broken.parameters())
    with pytest.raises(IntegrityError):
        make(broken).load_state_dict({**state, "else": torch.zeros(1)})
    wrong = dict(state)
    wrong[next(name for name in wrong if name.endswith("bias"))] = torch.zeros(3)
    with pytest.raises(IntegrityError):
        make(broken).load_state_dict(wrong)


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_must_be_those_of_the_model(make: Callable[[nn.Module], PrivateOptimizer]) -> None:
    optimizer = make(model())
    with pytest.raises(InvalidParameter, match="gradients"):
        optimizer.step({"0.weight": torch.zeros(2, 3)})
    with pytest.raises(InvalidParameter, match="gradients"):
        optimizer.step({"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(2)})


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("rate", lambda m: Momentum(m, rate=0.0)),
        ("momentum", lambda m: Momentum(m, rate=0.1, momentum=1.0)),
        ("noise_std", lambda m: DpAdamBC(m, rate=0.1, noise_std=float("nan"))),
        ("betas", lambda m: DpAdamBC(m, rate=0.1, noise_std=0.1, betas=(0.9, 1.0))),
        ("floor", lambda m: DpAdamBC(m, rate=0.1, noise_std=0.1, floor=0.0)),
        ("gain", lambda m: Disk(m, rate=0.1, gain=1.5)),
    ],
)
def test_parameters_are_checked(field: str, make: Callable[[nn.Module], PrivateOptimizer]) -> None:
    with pytest.raises(InvalidParameter, match=field):
        make(model())
