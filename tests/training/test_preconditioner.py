"""The transform is a function of released parameters and public constants; its scale gives C a meaning."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.training.baselines import AdaptiveDiagonal, PreconditionAfter
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.interfaces import MicroBatch, Preconditioner
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.optimizers import Momentum
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner
from evertally.pipelines.training.preconditioner_transforms import Kronecker
from evertally.pipelines.training.probes import PinkNoise, UniformLabels
from evertally.pipelines.training.probes_text import TokenProbe

pytestmark = pytest.mark.train

SEED = bytes(range(16))


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 12), nn.LayerNorm(12),
        nn.ReLU(), nn.Linear(12, 5),
    )  # fmt: skip


def pink(**options: float) -> PinkNoise:
    return PinkNoise(SEED, (1, 12, 12), UniformLabels(5), **options)  # type: ignore[arg-type] # floats only


def kronecker(model: nn.Module, **options: object) -> KroneckerPreconditioner:
    chosen: dict[str, object] = {"probes": 48, "micro_batch": 16, **options}
    return KroneckerPreconditioner(model, CrossEntropy(), pink(), **chosen)  # type: ignore[arg-type] # see above


def same(one: Preconditioner, other: Preconditioner) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_private_data_do_not_reach_the_transform() -> None:
    """Bit-identical on neighbouring data sets and on empty batches: it reads neither data nor size."""
    found = []
    x, y = torch.randn(9, 1, 12, 12), torch.randint(0, 5, (9,))
    for count in (9, 8, 1, 0):
        model = convolutions()
        preconditioner = kronecker(model)
        preconditioner.refresh(model, 0)
        GhostClipper(model, CrossEntropy(), preconditioner).sum([MicroBatch((x[:count],), y[:count])])
        preconditioner.refresh(model, 5)
        found.append(preconditioner)
    assert all(same(found[0], other) for other in found[1:])


def test_step_seed_and_parameters_decide() -> None:
    model = convolutions()
    first, again, later = kronecker(model), kronecker(model), kronecker(model)
    first.refresh(model, 1)
    torch.randn(3)  # the global generator plays no part
    again.refresh(model, 1)
    later.refresh(model, 2)
    assert same(first, again)
    assert not same(first, later)
    other = convolutions(seed=1)
    moved = kronecker(other)
    moved.refresh(other, 1)
    assert not same(first, moved)


def test_training_mode_buffers_and_generator_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 3)).train()
    probe = PinkNoise(SEED, (8,), UniformLabels(3))
    preconditioner = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=16)
    state = torch.get_rng_state()
    preconditioner.refresh(model, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("rival", [False, True])
def test_the_median_probe_has_norm_one(rival: bool) -> None:
    model = convolutions()
    preconditioner: Preconditioner = (
        AdaptiveDiagonal(model, CrossEntropy(), pink(), probes=48, micro_batch=16)
        if rival
        else kronecker(model)
    )
    preconditioner.refresh(model, 0)
    clipper = GhostClipper(model, CrossEntropy(), preconditioner, clip_norm=1e9)
    batch = pink().batch(0, 0, 48)
    norms = []
    for i in range(48):
        sums = clipper.sum([MicroBatch((batch.inputs[0][i : i + 1],), batch.targets[i : i + 1])]).tensors
        norms.append(math.sqrt(sum(float(torch.square(t).sum()) for t in sums.values())))
    assert sorted(norms)[23] == pytest.approx(1.0, rel=1e-6)
    assert preconditioner.metrics()["scale"] == pytest.approx(1 / preconditioner.metrics()["probe_norm"])


def test_low_rank_norms_are_the_dense_ones(
    materialised: Callable[..., tuple[dict[str, Tensor], Tensor]],
) -> None:
    """128 inputs and 40 probes: norms come from the root's spectrum, and survive a checkpoint bit for bit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    probe = PinkNoise(SEED, (128,), UniformLabels(3))
    preconditioner = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=40)
    preconditioner.refresh(model, 0)
    transform = preconditioner.transform("0")
    assert isinstance(transform, Kronecker)
    assert transform.spectrum is not None
    batch = MicroBatch((torch.randn(7, 128, dtype=torch.float64),), torch.randint(0, 3, (7,)))
    expected, norms = materialised(model, CrossEntropy(), preconditioner, batch, 0.5)
    assert float(norms.min()) > 0.5
    restored = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=40)
    restored.load_state_dict(preconditioner.state_dict())
    found, again = (
        GhostClipper(model, CrossEntropy(), p, clip_norm=0.5).sum([batch]).tensors
        for p in (preconditioner, restored)
    )
    for name, tensor in expected.items():
        assert float((found[name] - tensor).norm()) < 1e-11 * float(tensor.norm())
        assert torch.equal(found[name], again[name])


def test_g_is_not_inert() -> None:
    """A mean over M probes would scale G by 1/M^2, and damping would make its root a multiple of I."""
    model = convolutions()
    preconditioner = kronecker(model)
    preconditioner.refresh(model, 0)
    figures = preconditioner.metrics()
    assert figures["condition_g/6"] > 1.5
    assert figures["condition_a/6"] > 1.5
    assert figures["identity_factors"] == 0.0
    # what averaging over the probes would have left, under the paper's damping
    paper = kronecker(model, mode="paper")

    class Averaged(CrossEntropy):
        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return CrossEntropy.per_example(self, outputs, targets) / 256

    averaged = KroneckerPreconditioner(model, Averaged(), pink(), mode="paper", probes=48)
    averaged.refresh(model, 0)
    paper.refresh(model, 0)
    assert averaged.metrics()["condition_g/6"] < 1.01 < paper.metrics()["condition_g/6"]


@pytest.mark.parametrize("factor", [7.0, 1 / 256])
def test_relative_mode_ignores_the_scale_of_the_loss(factor: float) -> None:
    class Scaled(CrossEntropy):
        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return factor * CrossEntropy.per_example(self, outputs, targets)

    model = convolutions().double()
    one, other = kronecker(model), KroneckerPreconditioner(model, Scaled(), pink(), probes=48, micro_batch=16)
    one.refresh(model, 0)
    other.refresh(model, 0)
    for layer in inventory(model):
        a, b = one.transform(layer.name), other.transform(layer.name)
        eye = torch.eye(*layer.shape, dtype=torch.float64)
        assert torch.allclose(a.apply(eye), factor * b.apply(eye), rtol=1e-9, atol=1e-12)


def test_how_probes_are_split_changes_rounding_alone() -> None:
    model = convolutions().double()
    one, other = kronecker(model), kronecker(model, micro_batch=5)
    one.refresh(model, 0)
    other.refresh(model, 0)
    for name, value in one.metrics().items():
        assert other.metrics()[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_paper_mode_leaves_other_layers_raw() -> None:
    model = convolutions()
    preconditioner = kronecker(model, mode="paper")
    preconditioner.refresh(model, 0)
    raw = preconditioner.transform("4")
    assert isinstance(raw, Kronecker)
    assert raw.left is None
    assert raw.scale == 1.0
    assert preconditioner.metrics()["scale"] == 1.0
    every = kronecker(model)
    every.refresh(model, 0)
    assert not isinstance(every.transform("4"), Kronecker)  # each layer has a transform of its own


def test_state_round_trip_and_refusals() -> None:
    model = convolutions()
    for make in (kronecker, lambda m: AdaptiveDiagonal(m, CrossEntropy(), pink(), probes=16)):
        one, other = make(model), make(model)
        assert one.state_dict() == {}
        other.load_state_dict({})
        with pytest.raises(IntegrityError, match="never refreshed"):
            one.transform("0")
        one.refresh(model, 3)
        other.load_state_dict(one.state_dict())
        assert same(one, other)
        assert one.metrics() == other.metrics()
        state = dict(one.state_dict())
        key = next(name for name in state if name.startswith("6|") and not name.endswith("scale"))
        for wrong in (
            {**state, "9|left": torch.eye(2)},
            {**state, key: torch.eye(2)},
            {**state, key: torch.full_like(state[key], torch.nan)},
            {name: tensor for name, tensor in state.items() if name != "0|scale"},
        ):
            with pytest.raises(IntegrityError):
                make(model).load_state_dict(wrong)
    identity = IdentityPreconditioner()
    identity.load_state_dict({})
    with pytest.raises(IntegrityError):
        identity.load_state_dict({"0|scale": torch.tensor(1.0)})


def test_wide_layers_are_declared() -> None:
    model = convolutions()
    preconditioner = kronecker(model, dense_max=64)
    preconditioner.refresh(model, 0)
    assert preconditioner.describe()["diagonal_factors"] == ["3/a"]
    transform = preconditioner.transform("3")
    assert isinstance(transform, Kronecker)
    assert transform.right is not None
    assert transform.right.dim() == 1


def test_embedding_uses_the_probe_s_own_frequencies() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(40, 6, padding_idx=0)
            self.head = nn.Linear(6, 3)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return self.head((self.tokens(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    model = Bag()
    probe = TokenProbe(SEED, 40, 12, UniformLabels(3))
    preconditioner = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=32)
    preconditioner.refresh(model, 0)
    transform = preconditioner.transform("tokens")
    assert isinstance(transform, Kronecker)
    p = torch.from_numpy(probe.token_frequencies())
    p[0] = 0.0
    assert transform.right is not None
    assert torch.allclose(transform.right, (p / p.mean() + 0.5).rsqrt(), rtol=1e-12)


def test_after_the_noise_is_the_same_map() -> None:
    model, moved = convolutions(), convolutions()
    preconditioner = kronecker(model)
    preconditioner.refresh(model, 0)
    gradients = {name: torch.randn_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    after = PreconditionAfter(moved, preconditioner, Momentum(moved, rate=0.1))
    after.step(gradients)
    weight = {"6.weight": gradients["6.weight"], "6.bias": gradients["6.bias"]}
    layer = inventory(model)[-1]
    expected = layer.to_parameters(preconditioner.transform("6").apply(layer.to_matrix(weight)))
    delta = (model.get_parameter("6.weight") - moved.get_parameter("6.weight")).double()
    assert torch.allclose(delta, 0.1 * expected["6.weight"], atol=1e-6)
    fresh = PreconditionAfter(moved, preconditioner, Momentum(moved, rate=0.1))
    fresh.load_state_dict(after.state_dict())
    assert all(torch.equal(t, fresh.state_dict()[n]) for n, t in after.state_dict().items())


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("mode", {"mode": "exact"}),
        ("gamma", {"gamma": 0.0}),
        ("gamma", {"gamma": float("nan")}),
        ("probes", {"probes": 0}),
        ("micro_batch", {"micro_batch": True}),
        ("dense_max", {"dense_max": -1}),
    ],
)
def test_parameters_are_checked(field: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=field):
        kronecker(convolutions(), **options)
