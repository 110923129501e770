"""Ways in which private training goes wrong, each shut by a test."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.interfaces import MicroBatch, PrivateSums
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner
from evertally.pipelines.training.probes import PinkNoise, UniformLabels
from evertally.pipelines.training.taps import record
from evertally.pipelines.training.taps_check import check_model

pytestmark = pytest.mark.train


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7, bias=False))
    model[1].weight = model[0].weight
    return model


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].weight.requires_grad_(False)
    return model


class Positions(nn.Module):
    """A parameter of the model itself, in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(3, 2)


class Subclass(nn.Linear):
    """May compute anything."""


@pytest.mark.parametrize(
    ("words", "make"),
    [
        (("BatchNorm2d", "1"), lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))),
        (("BatchNorm1d", "mixes examples"), lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
        (("InstanceNorm2d",), lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.InstanceNorm2d(2, affine=True))),
        (("groups=2",), lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2))),
        (("padding_mode='reflect'",), lambda: nn.Conv2d(2, 2, 3, padding_mode="reflect")),
        (("padding_mode='circular'",), lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")),
        (("transposed",), lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 3))),
        (("Conv1d",), lambda: nn.Sequential(nn.Conv1d(2, 2, 3))),
        (("tied", "0.weight"), tied),
        (("frozen", "bias"), half_frozen),
        (("MultiheadAttention", "fused"), lambda: nn.MultiheadAttention(4, 2)),
        (("GRU",), lambda: nn.Sequential(nn.GRU(2, 2))),
        (("EmbeddingBag",), lambda: nn.Sequential(nn.EmbeddingBag(3, 2))),
        (("max_norm",), lambda: nn.Sequential(nn.Embedding(3, 2, max_norm=1.0))),
        (("scale_grad_by_freq",), lambda: nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True))),
        (("Positions",), Positions),
        (("Subclass",), lambda: nn.Sequential(Subclass(2, 2))),
        (("ParametrizedLinear",), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))),
    ],
)  # fmt: skip
def test_unsound_layers_are_refused_by_name(words: tuple[str, ...], make: Callable[[], nn.Module]) -> None:
    with pytest.raises(UnsupportedMechanism) as refusal:
        GhostClipper(make(), CrossEntropy(), IdentityPreconditioner())
    assert all(word in str(refusal.value) for word in words)


def test_nothing_trainable_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        inventory(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.ReLU()))


def test_frozen_layers_have_no_taps_and_no_sums() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3))
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner())
    sums = clipper.sum([MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))]).tensors
    assert list(sums) == ["2.weight", "2.bias"]


def test_nothing_private_stays_behind() -> None:
    """No `.grad`, no hook, no new attribute, no live activation; inputs without gradients warn of nothing."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner())
    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    gone = weakref.ref(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sums = clipper.sum([MicroBatch((x,), y)])
    del x
    gc.collect()
    assert gone() is None
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks and not m._backward_hooks for m in model.modules())
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}
    assert "<" in repr(sums)
    assert not any(character.isdigit() for character in repr(sums).replace("4 tensors", ""))
    with pytest.raises(TypeError, match="do not leave"):
        pickle.dumps(sums)
    assert isinstance(sums, PrivateSums)


def test_hooks_are_gone_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner())
    with pytest.raises(RuntimeError):
        clipper.sum([MicroBatch((torch.randn(5, 3),), torch.randint(0, 3, (5,)))])
    assert all(not m._forward_hooks for m in model.modules())


def test_dropout_is_off_so_that_a_replay_gives_the_same_bits() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner())
    batch = MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))
    one, other = clipper.sum([batch]).tensors, clipper.sum([batch]).tensors
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert model.training
    assert model[1].training


def test_deterministic_mode_is_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner())
    for mode in (True, False):
        torch._C._set_deterministic_algorithms(mode)
        clipper.sum([MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))])
        assert torch.are_deterministic_algorithms_enabled() is mode


def test_an_input_changed_in_place_is_refused() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Identity()
            self.a, self.b = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.a(tokens)
            tokens += 1
            return self.b(x)

    model = InPlace()
    with pytest.raises(UnsupportedMechanism, match="layer a: its input is changed in place"):
        record(
            model, inventory(model), CrossEntropy(), MicroBatch((torch.tensor([0, 1]),), torch.tensor([0, 1]))
        )


def test_examples_must_come_first() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x.transpose(0, 1)).mean(0))

    clipper = GhostClipper(TimeFirst(), CrossEntropy(), IdentityPreconditioner())
    with pytest.raises(UnsupportedMechanism, match="layer inner: its first dimension is not the examples"):
        clipper.sum([MicroBatch((torch.randn(5, 2, 4),), torch.randint(0, 3, (5,)))])


def test_a_loss_that_averages_over_the_batch_is_refused() -> None:
    class Averaged:
        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs, targets)

    clipper = GhostClipper(nn.Linear(4, 3), Averaged(), IdentityPreconditioner())
    with pytest.raises(UnsupportedMechanism, match="not one value an example"):
        clipper.sum([MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))])


def test_a_layer_under_no_grad_is_refused() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.inner(x)
            return self.head(x)

    clipper = GhostClipper(Cut(), CrossEntropy(), IdentityPreconditioner())
    with pytest.raises(UnsupportedMechanism, match="layer inner: it is trainable and runs under no_grad"):
        clipper.sum([MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))])


def test_a_layer_that_is_not_reached_sums_to_zero() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x)

    model = Unused()
    batch = MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))
    sums = GhostClipper(model, CrossEntropy(), IdentityPreconditioner()).sum([batch]).tensors
    assert not bool(sums["spare.weight"].any())
    preconditioner = KroneckerPreconditioner(
        model, CrossEntropy(), PinkNoise(bytes(16), (4,), UniformLabels(3)), probes=8
    )
    preconditioner.refresh(model, 0)
    assert preconditioner.metrics()["identity_factors"] == 2.0
    assert not bool(
        GhostClipper(model, CrossEntropy(), preconditioner).sum([batch]).tensors["spare.bias"].any()
    )


class Functional(nn.Module):
    """Uses a layer's weight outside its forward call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)) @ self.inner.weight)


class Mixing(nn.Module):
    """Subtracts the mean of the batch, without any layer that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return y - y.mean(dim=0, keepdim=True)


def test_hidden_uses_and_mixed_examples_are_found_on_probes() -> None:
    torch.manual_seed(0)
    batch = MicroBatch((torch.randn(6, 4),), torch.randint(0, 3, (6,)))
    check_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), CrossEntropy(), batch)
    with pytest.raises(UnsupportedMechanism, match=r"inner\.weight is used outside"):
        check_model(Functional(), CrossEntropy(), batch)
    with pytest.raises(UnsupportedMechanism, match="depends on the other examples"):
        check_model(Mixing(), CrossEntropy(), batch)


def test_lower_precision_passes_keep_their_sums_in_doubles() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = MicroBatch((torch.randn(5, 4),), torch.randint(0, 3, (5,)))
    exact = GhostClipper(model, CrossEntropy(), IdentityPreconditioner()).sum([batch]).tensors
    lower = GhostClipper(
        model, CrossEntropy(), IdentityPreconditioner(), autocast=torch.bfloat16
    ).sum([batch]).tensors  # fmt: skip
    for name, tensor in lower.items():
        assert tensor.dtype is torch.float64
        assert 0 < float((tensor - exact[name]).norm()) < 0.05 * float(exact[name].norm())


def test_sums_do_not_depend_on_the_size_of_the_batch() -> None:
    """No division by the realised batch, nor by N q: two neighbouring sets differ by one clipped gradient."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    clipper = GhostClipper(model, CrossEntropy(), IdentityPreconditioner(), clip_norm=0.1)
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(0, 3, (9,))
    whole = clipper.sum([MicroBatch((x,), y)]).tensors
    most = clipper.sum([MicroBatch((x[:8],), y[:8])]).tensors
    one = clipper.sum([MicroBatch((x[8:],), y[8:])]).tensors
    for name, tensor in whole.items():
        assert torch.allclose(tensor - most[name], one[name], atol=1e-14)


@pytest.mark.gpu
def test_cuda_gives_the_same_sums() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    probe = PinkNoise(bytes(16), (1, 12, 12), UniformLabels(5))
    preconditioner = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=32)
    preconditioner.refresh(model, 0)
    x, y = torch.randn(6, 1, 12, 12), torch.randint(0, 5, (6,))
    here = (
        GhostClipper(model, CrossEntropy(), preconditioner, clip_norm=0.5).sum([MicroBatch((x,), y)]).tensors
    )
    model.cuda()
    clipper = GhostClipper(model, CrossEntropy(), preconditioner, clip_norm=0.5)
    there = [clipper.sum([MicroBatch((x.cuda(),), y.cuda())]).tensors for _ in range(2)]
    for name, tensor in here.items():
        assert torch.equal(there[0][name], there[1][name])
        assert float((there[0][name].cpu() - tensor).norm()) <= 1e-4 * float(tensor.norm())
