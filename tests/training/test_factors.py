"""Factors and their inverse roots: golden values, an independent library, and what must not change them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evertally.pipelines.training.factors import FactorSums
from evertally.pipelines.training.factors_roots import Damping, inverse_root
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.taps import Tap, record

pytestmark = pytest.mark.train

# Worked out once in doubles with NumPy from a = [[1, 2], [3, -1]], d = [[1/2, -1], [-1/4, 2]].
GOLDEN_A = [[5.0, -0.5, 2.0], [-0.5, 2.5, 0.5], [2.0, 0.5, 1.0]]
GOLDEN_G = [[0.15625, -0.5], [-0.5, 2.5]]
GOLDEN_ROOT_A = [
    [1.379343346266496, 0.640233962970536, -2.256386495836514],
    [0.640233962970536, 1.027437340586798, -1.452365579092222],
    [-2.256386495836514, -1.452365579092222, 5.689083433909101],
]
GOLDEN_ROOT_G = [[3.552424627650029, 0.599945139880356], [0.599945139880356, 0.740181784460863]]


def doubles(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def root_of(factor: Tensor, damping: Damping) -> Tensor:
    return present(inverse_root(factor, damping).root)


def test_golden_factors_and_roots() -> None:
    model = nn.Linear(2, 2).double()
    (layer,) = inventory(model)
    sums = FactorSums(layer, dense_max=10)
    sums.add([Tap(doubles([[1, 2], [3, -1]]), doubles([[0.5, -1], [-0.25, 2]]))])
    found = sums.factors()
    right, left = present(found.right), present(found.left)
    assert torch.equal(right, doubles(GOLDEN_A))
    assert torch.equal(left, doubles(GOLDEN_G))
    damping = Damping(0.02, relative=False)  # 1e-2 twice, as in mode "paper"
    for factor, expected in ((right, GOLDEN_ROOT_A), (left, GOLDEN_ROOT_G)):
        assert float((root_of(factor, damping) - doubles(expected)).abs().max()) < 1e-12


def test_kronecker_identity() -> None:
    """The product of the roots is the root of the product, on column-major vectors."""
    a, g = doubles(GOLDEN_A), doubles(GOLDEN_G)
    damping = Damping(0.02, relative=False)
    product = torch.kron(root_of(a, damping), root_of(g, damping))
    damped = torch.kron(a + 0.02 * doubles(np.eye(3)), g + 0.02 * doubles(np.eye(2)))
    expected = root_of(damped, Damping(0.0, relative=False))
    assert float((product - expected).abs().max()) < 1e-13 * float(expected.abs().max()) * 10


def test_root_of_two_by_two() -> None:
    found = root_of(doubles([[2, 1], [1, 2]]), Damping(0.0, relative=False))
    assert float(found[0, 0]) == pytest.approx((1 / np.sqrt(3) + 1) / 2, rel=1e-14)
    assert float(found[0, 1]) == pytest.approx((1 / np.sqrt(3) - 1) / 2, rel=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.floats(1e-3, 1.0), st.integers(0, 2**31))
def test_roots_are_inverse_roots(size: int, rank: int, gamma: float, seed: int) -> None:
    rows = doubles(np.random.default_rng(seed).standard_normal((rank, size)))
    factor = rows.T @ rows
    found = inverse_root(factor, Damping(gamma, relative=True))
    root = present(found.root)
    normal = factor / factor.diagonal().mean() + gamma * doubles(np.eye(size))
    assert float((root @ normal @ root - doubles(np.eye(size))).abs().max()) < 1e-10
    values = torch.linalg.eigvalsh(root)
    assert float(values.max()) <= gamma**-0.5 * (1 + 1e-9)
    assert float(values.min()) >= float(torch.linalg.eigvalsh(normal).max()) ** -0.5 * (1 - 1e-9)
    assert found.condition == pytest.approx(float(values.max() / values.min()), rel=1e-6)
    scaled = root_of(factor * 49.0, Damping(gamma, relative=True))
    assert float((scaled - root).abs().max()) < 1e-9


def test_dead_directions_get_no_more_than_the_damping_allows() -> None:
    factor = torch.diag(doubles([3.0, 1.0, 0.0]))
    found = root_of(factor, Damping(0.5, relative=True))
    assert float(found[2, 2]) == pytest.approx(0.5**-0.5)


@pytest.mark.parametrize("factor", [torch.zeros(3, 3), torch.full((3, 3), torch.nan), torch.zeros(3)])
def test_an_unusable_factor_gives_the_identity(factor: Tensor) -> None:
    assert inverse_root(factor, Damping(0.5, relative=True)).root is None


def test_a_failing_decomposition_is_damped_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = torch.linalg.eigh, []

    def fails_twice(matrix: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(matrix)
        if len(calls) < 3:
            raise RuntimeError("linalg.eigh: the algorithm failed to converge")
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", fails_twice)
    found = inverse_root(torch.eye(3), Damping(0.5, relative=True))
    assert found.root is not None
    assert len(calls) == 3
    monkeypatch.setattr(torch.linalg, "eigh", lambda _m: (_ for _ in ()).throw(RuntimeError("no")))
    assert inverse_root(torch.eye(3), Damping(0.5, relative=True)).root is None


def factors_of(
    model: nn.Module, batches: list[MicroBatch], name: str, **options: object
) -> tuple[Tensor, Tensor]:
    layers = inventory(model)
    layer = next(layer for layer in layers if layer.name == name)
    sums = FactorSums(layer, dense_max=64, **options)  # type: ignore[arg-type] # one optional keyword
    for batch in batches:
        sums.add(record(model, layers, CrossEntropy(), batch)[name])
    found = sums.factors()
    assert found.left is not None
    assert found.right is not None
    return found.left, found.right


def test_curvlinops_gives_the_same_factors() -> None:
    """The oracle's empirical Fisher of a summed loss: its G is ours times the rows, its A likewise."""
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4)).double()
    x, y = torch.randn(8, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (8,))
    params = list(model.parameters())
    operator = curvlinops.KFACLinearOperator(
        model, nn.CrossEntropyLoss(reduction="sum"), params, [(x, y)], fisher_type="empirical",
        kfac_approx="expand", separate_weight_and_bias=False,
    )  # fmt: skip
    for name, first in (("0", 0), ("3", 2)):
        left, right = factors_of(model, [MicroBatch((x,), y)], name)
        columns = []
        size = right.shape[0] * left.shape[0]
        basis = torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
        offset = sum(p.numel() for p in params[:first])
        weight = params[first]
        for index in (0, 1, weight.numel() - 1, weight.numel()):  # the last is the bias's first
            basis.zero_()
            basis[offset + index] = 1.0
            columns.append((index, (operator @ basis)[offset : offset + size]))
        scale = None
        for index, found in columns:
            unit = torch.zeros(left.shape[0], right.shape[0], dtype=torch.float64)
            if index < weight.numel():
                unit[index // (right.shape[0] - 1), index % (right.shape[0] - 1)] = 1.0
            else:
                unit[index - weight.numel(), -1] = 1.0
            mapped = left @ unit @ right
            expected = torch.cat([mapped[:, :-1].reshape(-1), mapped[:, -1]])
            scale = scale if scale is not None else float(found.norm() / expected.norm())
            assert float((found - scale * expected).norm()) < 1e-10 * float(found.norm())


def test_splitting_the_probes_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randint(0, 3, (12,))
    whole = factors_of(model, [MicroBatch((x,), y)], "0")
    for size in (1, 5):
        split = [MicroBatch((x[i : i + size],), y[i : i + size]) for i in range(0, 12, size)]
        for one, other in zip(whole, factors_of(model, split, "0"), strict=True):
            assert float((one - other).abs().max()) < 1e-14
    # twice the probes (each seen twice) is the same mean: G does not carry the number of probes
    for one, other in zip(whole, factors_of(model, [MicroBatch((x,), y)] * 2, "0"), strict=True):
        assert float((one - other).abs().max()) < 1e-14


def test_no_bias_means_no_ones() -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3))
    batch = MicroBatch((torch.randn(6, 5),), torch.randint(0, 3, (6,)))
    assert factors_of(model, [batch], "0")[1].shape == (5, 5)
    assert factors_of(model, [batch], "1")[1].shape == (5, 5)


def test_wide_sides_keep_their_diagonal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(80, 3)).double()
    x = torch.randn(6, 80, dtype=torch.float64)
    left, right = factors_of(model, [MicroBatch((x,), torch.randint(0, 3, (6,)))], "0")
    assert left.shape == (3, 3)
    ones = torch.cat([x, torch.ones(6, 1, dtype=torch.float64)], 1)
    assert torch.allclose(right, torch.square(ones).mean(0))


def test_embedding_counts_tokens_and_skips_padding() -> None:
    torch.manual_seed(0)
    for padding, expected in ((None, [3, 2, 1, 0]), (0, [0, 2, 1, 0])):
        model = nn.Sequential(nn.Embedding(4, 2, padding_idx=padding), nn.Flatten(), nn.Linear(6, 3))
        batch = MicroBatch((torch.tensor([[1, 0, 0], [1, 2, 0]]),), torch.tensor([0, 1]))
        assert torch.equal(factors_of(model, [batch], "0")[1] * 6, doubles(expected))


def test_layer_norm_keeps_mean_squares_of_examples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)).double()
    x, y = torch.randn(4, 5, dtype=torch.float64), torch.randint(0, 3, (4,))
    own = list(model[0].parameters())
    layers = inventory(model)
    sums = FactorSums(layers[0], dense_max=64)
    sums.add(record(model, layers, CrossEntropy(), MicroBatch((x,), y))["0"])
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for i in range(4):
        value = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        expected += torch.stack(torch.autograd.grad(value, own)).square() / 4
    assert torch.allclose(present(sums.factors().squares), expected, rtol=1e-12)


def test_low_rank_form_is_the_root_s_square() -> None:
    rows = doubles(np.random.default_rng(0).standard_normal((5, 30)))
    found = inverse_root(rows.T @ rows, Damping(0.5, relative=True))
    assert found.spectrum is not None
    assert found.spectrum.vectors.shape == (30, 5)
    square = (
        found.spectrum.floor * doubles(np.eye(30))
        - (found.spectrum.vectors * found.spectrum.drop) @ found.spectrum.vectors.T
    )
    root = present(found.root)
    assert float((square - root @ root).abs().max()) < 1e-13
    full = doubles(np.random.default_rng(0).standard_normal((50, 30)))
    assert inverse_root(full.T @ full, Damping(0.5, relative=True)).spectrum is None
