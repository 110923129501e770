"""The clipped, preconditioned sum equals a materialised reference, for every kind of layer and every plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from evertally.errors import InvalidParameter
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.ghost_contributions import Arithmetic
from evertally.pipelines.training.ghost_plans import Plan, choose_plan, plan_cost
from evertally.pipelines.training.interfaces import Loss, MicroBatch, Preconditioner
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.losses import CrossEntropy, MeanSquaredError
from evertally.pipelines.training.preconditioner import IdentityPreconditioner
from evertally.pipelines.training.preconditioner_transforms import Elementwise, Kronecker, Transform

pytestmark = pytest.mark.train

Reference = Callable[..., tuple[dict[str, Tensor], Tensor]]


class Fixed:
    """A preconditioner of given transforms."""

    def __init__(self, transforms: Mapping[str, Transform]) -> None:
        self.transforms = transforms

    def refresh(self, model: nn.Module, step: int) -> None:
        raise AssertionError(model, step)

    def transform(self, layer: str) -> Transform:
        return self.transforms[layer]

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        raise AssertionError(state)

    def metrics(self) -> dict[str, float]:
        return {}

    def describe(self) -> dict[str, object]:
        return {}


def root(size: int) -> Tensor:
    """A symmetric positive matrix with eigenvalues in [0.1, 10]."""
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    return (q * torch.logspace(-1, 1, size, dtype=torch.float64)) @ q.T


def dense(model: nn.Module) -> Fixed:
    from evertally.pipelines.training.layers import Kind

    found: dict[str, Transform] = {}
    for layer in inventory(model):
        rows, columns = layer.shape
        if layer.kind is Kind.LAYER_NORM:
            found[layer.name] = Elementwise(0.1 + torch.rand(rows, columns, dtype=torch.float64), 0.7)
        elif layer.kind is Kind.EMBEDDING:
            found[layer.name] = Kronecker(root(rows), 0.1 + torch.rand(columns, dtype=torch.float64), 0.7)
        else:
            found[layer.name] = Kronecker(root(rows), root(columns), 0.7)
    return Fixed(found)


def elementwise(model: nn.Module) -> Fixed:
    return Fixed({
        layer.name: Elementwise(0.1 + torch.rand(layer.shape, dtype=torch.float64), 1.3)
        for layer in inventory(model)
    })  # fmt: skip


def diagonal(model: nn.Module) -> Fixed:
    return Fixed({
        layer.name: Kronecker(
            0.1 + torch.rand(layer.shape[0], dtype=torch.float64),
            0.1 + torch.rand(layer.shape[1], dtype=torch.float64),
        )
        for layer in inventory(model)
    })  # fmt: skip


class Attention(nn.Module):
    """One block with an embedding, position embedding, fused qkv, LayerNorm and a masked mean."""

    def __init__(self, padding_idx: int | None = 0, width: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width, padding_idx=padding_idx)
        self.places = nn.Embedding(7, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand(tokens.shape)
        x = self.tokens(tokens) + self.places(places)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(mask[:, None] == 0, -1e9)
        x = x + self.out(scores.softmax(-1) @ v)
        x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


class Twice(nn.Module):
    """One Linear used twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class LowRank(nn.Module):
    """A frozen Linear with a trainable low-rank correction."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 4).requires_grad_(False)
        self.lora_a = nn.Linear(5, 2, bias=False)
        self.lora_b = nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + self.lora_b(self.lora_a(x))))


def images(*shape: int) -> tuple[Tensor]:
    return (torch.randn(*shape),)


def tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 11, (6, 7))
    mask = torch.ones(6, 7, dtype=torch.int64)
    for i in range(6):
        ids[i, 3 + i % 4 :] = 0
        mask[i, 3 + i % 4 :] = 0
    return ids, mask


def labels(*shape: int) -> Tensor:
    return torch.randint(0, 3, shape)


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, (3, 2), stride=2),
        nn.Tanh(),
        nn.Conv2d(3, 3, 2, dilation=2, padding=(1, 2), bias=False),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


CASES: dict[str, Callable[[], tuple[nn.Module, Loss, tuple[Tensor, ...], Tensor]]] = {
    "vectors": lambda: (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), CrossEntropy(), images(6, 5), labels(6)),
    "no-bias": lambda: (
        nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)),
        CrossEntropy(), images(6, 5), labels(6)),
    "sequence": lambda: (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), CrossEntropy(), images(6, 7, 5),
        labels(6, 7).masked_fill(torch.rand(6, 7) < 0.4, -100)),
    "regression": lambda: (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), MeanSquaredError(), images(6, 5),
        torch.randn(6, 2)),
    "conv": lambda: (convolutions(), CrossEntropy(), images(6, 2, 9, 8), labels(6)),
    "conv-same": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, dilation=2, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(90, 3)),
        CrossEntropy(), images(6, 1, 5, 6), labels(6)),
    "norm": lambda: (
        nn.Sequential(
            nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.LayerNorm((7, 4), bias=False), nn.Linear(4, 3)),
        CrossEntropy(), images(6, 7, 5), labels(6, 7)),
    "attention": lambda: (Attention(), CrossEntropy(), tokens(), labels(6)),
    "attention-pads-count": lambda: (Attention(None), CrossEntropy(), tokens(), labels(6)),
    "twice": lambda: (Twice(), CrossEntropy(), images(6, 5), labels(6)),
    "low-rank": lambda: (LowRank(), CrossEntropy(), images(6, 5), labels(6)),
}  # fmt: skip


def built(name: str, dtype: torch.dtype) -> tuple[nn.Module, Loss, MicroBatch]:
    torch.manual_seed(7)
    model, loss, inputs, targets = CASES[name]()
    model(*inputs)  # gives a lazy layer its shape
    model = model.to(dtype)
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return model, loss, MicroBatch(cast, targets.to(dtype) if targets.is_floating_point() else targets)


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Largest relative difference over the parameters."""
    assert list(found) == list(expected)
    return max(
        float((found[name].double() - value).norm() / value.norm().clamp(min=1e-12))
        for name, value in expected.items()
    )


@pytest.mark.parametrize("plan", [None, Plan.GRAM, Plan.MATERIALISE])
@pytest.mark.parametrize("transforms", [dense, elementwise, diagonal])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_sums_equal_the_materialised_reference(
    name: str,
    transforms: Callable[[nn.Module], Fixed],
    plan: Plan | None,
    dtype: torch.dtype,
    tolerance: float,
    materialised: Reference,
) -> None:
    model, loss, batch = built(name, dtype)
    preconditioner = transforms(model)
    median = float(materialised(model, loss, preconditioner, batch, 1.0)[1].median())
    expected, _ = materialised(model, loss, preconditioner, batch, median)  # half of the examples are clipped
    clipper = GhostClipper(
        model, loss, preconditioner, clip_norm=median, arithmetic=Arithmetic(plan=plan, memory_bytes=1 << 12)
    )
    found = clipper.sum([batch]).tensors
    assert distance(found, expected) <= tolerance
    assert [(p.name, p.shape) for p in clipper.parameters] == [(n, tuple(t.shape)) for n, t in found.items()]
    assert all(t.dtype is torch.float64 and t.is_contiguous() for t in found.values())


@pytest.mark.parametrize("name", ["conv", "attention", "vectors"])
def test_singles_agree_with_doubles(name: str, materialised: Reference) -> None:
    model, loss, batch = built(name, torch.float32)
    expected, _ = materialised(model, loss, dense(built(name, torch.float32)[0]), batch, 0.5)
    for plan in (None, Plan.GRAM, Plan.MATERIALISE):
        model, loss, batch = built(name, torch.float32)
        clipper = GhostClipper(
            model, loss, dense(model), clip_norm=0.5, arithmetic=Arithmetic(dtype=torch.float32, plan=plan)
        )
        assert distance(clipper.sum([batch]).tensors, expected) <= 1e-5


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_change_rounding_alone(name: str) -> None:
    model, loss, batch = built(name, torch.float64)
    clipper = GhostClipper(model, loss, dense(model), clip_norm=0.5)
    whole = clipper.sum([batch]).tensors
    pieces = [
        MicroBatch(tuple(x[part] for x in batch.inputs), batch.targets[part])
        for part in (slice(0, 1), slice(1, 1), slice(1, 4), slice(4, 6))
    ]
    assert distance(clipper.sum(pieces).tensors, whole) <= 1e-12
    assert clipper.sum([batch]).tensors.keys() == whole.keys()
    for name_, tensor in clipper.sum([batch]).tensors.items():
        assert torch.equal(tensor, whole[name_])


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning"
)  # Opacus and torch about each other
def test_opacus_gives_the_same_sums() -> None:
    """The oracle: Opacus' per-sample gradients, then the dense transform."""
    grad_sample = pytest.importorskip("opacus").GradSampleModule
    for name in ("vectors", "sequence", "low-rank"):
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            model, loss, batch = built(name, dtype)
            _compare_with_opacus(grad_sample, model, loss, batch, tolerance)
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.LayerNorm(48),
        nn.Linear(48, 3),
    )
    batch = MicroBatch(images(6, 2, 8, 8), labels(6))
    _compare_with_opacus(grad_sample, model, CrossEntropy(), batch, 1e-5)


def _compare_with_opacus(
    grad_sample: Callable[[nn.Module], nn.Module],
    model: nn.Module,
    loss: Loss,
    batch: MicroBatch,
    tolerance: float,
) -> None:
    preconditioner = dense(model)
    clipper = GhostClipper(model, loss, preconditioner, clip_norm=0.5)
    found = clipper.sum([batch]).tensors
    wrapped = grad_sample(model)
    torch.autograd.backward(loss.per_example(wrapped(*batch.inputs), batch.targets).sum())
    samples = {n: vars(p)["grad_sample"].double() for n, p in model.named_parameters() if p.requires_grad}
    turned = []
    for i in range(batch.examples):
        one: dict[str, Tensor] = {}
        for layer in inventory(model):
            own = {n: samples[n][i] for n in (layer.weight, layer.bias) if n is not None}
            matrix = preconditioner.transform(layer.name).apply(layer.to_matrix(own))
            one.update(layer.to_parameters(matrix))
        norm = torch.stack([torch.square(t).sum() for t in one.values()]).sum().sqrt()
        turned.append({n: t * min(1.0, 0.5 / float(norm)) for n, t in one.items()})
    expected = {n: torch.stack([one[n] for one in turned]).sum(0) for n in found}
    assert distance(found, expected) <= tolerance


def test_golden_clipped_sum() -> None:
    """Computed once with NumPy in doubles: a, d, damping 0.02, C = 1."""
    a = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    d = torch.tensor([[0.5, -1.0], [-0.25, 2.0]], dtype=torch.float64)
    left = torch.tensor(
        [[3.552424627650029, 0.599945139880356], [0.599945139880356, 0.740181784460863]], dtype=torch.float64
    )
    right = torch.tensor(
        [
            [1.379343346266496, 0.640233962970536, -2.256386495836514],
            [0.640233962970536, 1.027437340586798, -1.452365579092222],
            [-2.256386495836514, -1.452365579092222, 5.689083433909101],
        ],
        dtype=torch.float64,
    )
    model = nn.Linear(2, 2).double()

    class Inner:
        """A loss whose gradient at the output is d."""

        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs * targets).sum(dim=1)

    clipper = GhostClipper(model, Inner(), Fixed({"": Kronecker(left, right)}), clip_norm=1.0)
    sums = clipper.sum([MicroBatch((a,), d)]).tensors
    found = torch.cat([sums["weight"], sums["bias"][:, None]], dim=1)
    expected = torch.tensor(
        [
            [0.468795483388806, 0.735538323579898, 0.411066156760889],
            [0.755964790048120, -0.694753503024819, 0.125483909156386],
        ],
        dtype=torch.float64,
    )
    assert float((found - expected).abs().max()) < 1e-13
    one = GhostClipper(model, Inner(), Fixed({"": Kronecker(left, right)}), clip_norm=1e3)
    for i, norm in enumerate((1.769901528164573, 1.928686835713925)):
        parts = one.sum([MicroBatch((a[i : i + 1],), d[i : i + 1])]).tensors
        assert float(torch.cat([p.reshape(-1) for p in parts.values()]).norm()) == pytest.approx(
            norm, rel=1e-13
        )


def test_units_are_clipped_as_wholes(materialised: Reference) -> None:
    model, loss, batch = built("conv", torch.float64)
    preconditioner: Preconditioner = dense(model)
    units = [[0, 1, 2], [3], [], [4, 5]]

    def part(indices: list[int]) -> MicroBatch:
        return MicroBatch(tuple(x[indices] for x in batch.inputs), batch.targets[indices])

    expected: dict[str, Tensor] = {}
    for unit in units:
        if not unit:
            continue
        raw, _ = materialised(model, loss, preconditioner, part(unit), math.inf)
        norm = torch.stack([torch.square(t).sum() for t in raw.values()]).sum().sqrt()
        for name, tensor in raw.items():
            expected[name] = expected.get(name, torch.tensor(0.0)) + tensor * min(1.0, 0.8 / float(norm))
    clipper = GhostClipper(model, loss, preconditioner, clip_norm=0.8)
    split = [[part(unit[:1]), part(unit[1:])] for unit in units]
    assert distance(clipper.sum_units(split).tensors, expected) <= 1e-10


def test_plans_and_their_costs() -> None:
    """Multiply-adds worked out by hand for layers of well-known networks."""
    full = Kronecker(torch.eye(2), torch.eye(2))
    roomy = 1 << 30
    assert plan_cost(Plan.RANK_ONE, 1, 1569, 128, full) == 1569**2 + 128**2
    assert plan_cost(Plan.MATERIALISE, 1, 1569, 128, full) // 10**6 == 341
    assert choose_plan(1, 1569, 128, full, memory_elements=roomy) is Plan.RANK_ONE
    assert plan_cost(Plan.MATERIALISE, 196, 145, 32, full) == 1_730_720
    assert choose_plan(196, 145, 32, full, memory_elements=roomy) is Plan.MATERIALISE
    assert plan_cost(Plan.GRAM, 128, 769, 768, full) // 10**6 == 176
    assert plan_cost(Plan.MATERIALISE, 128, 769, 768, full) // 10**6 == 983
    assert choose_plan(128, 769, 768, full, memory_elements=roomy) is Plan.GRAM
    # a cap that the matrix of 769 x 768 does not meet leaves Gram; one that neither meets, the smaller
    assert choose_plan(4096, 769, 768, full, memory_elements=10**6) is Plan.MATERIALISE
    assert choose_plan(512, 32, 16, Kronecker(), memory_elements=roomy) is Plan.MATERIALISE
    assert choose_plan(4, 800, 900, Elementwise(torch.ones(1)), memory_elements=roomy) is Plan.MATERIALISE


def test_empty_steps_give_zeros() -> None:
    model, loss, batch = built("conv", torch.float32)
    clipper = GhostClipper(model, loss, IdentityPreconditioner())
    empty = MicroBatch(tuple(x[:0] for x in batch.inputs), batch.targets[:0])
    for sums in (clipper.sum([]), clipper.sum([empty]), clipper.sum_units([]), clipper.sum_units([[empty]])):
        assert all(not bool(t.any()) for t in sums.tensors.values())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-310, True, "1"])
def test_clip_norm_is_checked(bad: float) -> None:
    model, loss, _ = built("vectors", torch.float32)
    with pytest.raises(InvalidParameter, match="clip_norm"):
        GhostClipper(model, loss, IdentityPreconditioner(), clip_norm=bad)


def test_half_precision_sums_are_refused() -> None:
    model, loss, _ = built("vectors", torch.float32)
    with pytest.raises(InvalidParameter, match=r"arithmetic\.dtype"):
        GhostClipper(model, loss, IdentityPreconditioner(), arithmetic=Arithmetic(dtype=torch.float16))
