"""Probes have the spectra and frequencies they claim, and are functions of public things alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from evertally.errors import InvalidParameter
from evertally.pipelines.training.probes import NormalTargets, PinkNoise, UniformLabels, pink_filter
from evertally.pipelines.training.probes_public import PublicFolder
from evertally.pipelines.training.probes_stream import PublicStream
from evertally.pipelines.training.probes_text import TokenProbe, ZipfDocuments, zipf_probabilities

pytestmark = pytest.mark.train

SEED = bytes(range(32))
LABELS = UniformLabels(10)


def images(size: int, alpha: float, convention: str = "power") -> NDArray[np.float64]:
    probe = PinkNoise(SEED, (size, size), LABELS, alpha=alpha, convention=convention)
    return probe.batch(0, 0, 256).inputs[0].numpy().astype(np.float64)


def slope(pictures: NDArray[np.float64]) -> float:
    """Log-log slope of the batch-mean power over 0 < r <= 0.5."""
    power = np.square(np.abs(np.fft.fft2(pictures))).mean(axis=0)
    fy, fx = np.meshgrid(*(np.fft.fftfreq(n) for n in pictures.shape[1:]), indexing="ij")
    r = np.hypot(fy, fx)
    kept = (r > 0) & (r <= 0.5)
    return float(np.polyfit(np.log(r[kept]), np.log(power[kept]), 1)[0])


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.8, 2.0])
def test_power_falls_as_claimed(size: int, alpha: float) -> None:
    """Normalising each image costs 0.7% of the slope; its spread over seeds is 0.005 to 0.008."""
    assert slope(images(size, alpha)) == pytest.approx(-0.993 * alpha, abs=0.03)


def test_amplitude_convention_is_twice_as_steep() -> None:
    assert slope(images(28, 1.0, "amplitude")) == pytest.approx(-1.985, abs=0.03)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(1.0, (0.281, 0.097, 0.027, 0.002)), (2.0, (0.647, 0.408, 0.201, 0.029))]
)
def test_neighbours_correlate_as_claimed(alpha: float, expected: tuple[float, ...]) -> None:
    """Horizontal correlations at lags 1, 2, 4, 8 of 28 x 28 images; measured once in NumPy."""
    pictures = images(28, alpha)
    for lag, value in zip((1, 2, 4, 8), expected, strict=True):
        found = np.mean(pictures * np.roll(pictures, lag, axis=2))
        assert found == pytest.approx(value, abs=0.02)


@pytest.mark.parametrize("shape", [(3, 16, 24), (1, 5, 2), (16, 24), (40,), (3, 7, 7)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    probe = PinkNoise(SEED, shape, LABELS, mean=0.25, scale=0.5)
    x = probe.batch(3, 0, 4).inputs[0]
    assert x.shape == (4, *shape)
    assert x.dtype is torch.float32
    axes = (-1,) if len(shape) == 1 else (-2, -1)
    assert torch.allclose(x.mean(axes), torch.tensor(0.25), atol=1e-5)
    assert torch.allclose(x.std(axes, correction=0), torch.tensor(0.5), atol=1e-5)


def test_brightness_moves_the_mean_of_each_channel_and_nothing_else() -> None:
    plain = PinkNoise(SEED, (3, 8, 6), LABELS, scale=0.5).batch(2, 0, 400).inputs[0].double()
    lit = PinkNoise(SEED, (3, 8, 6), LABELS, scale=0.5, brightness=2.0).batch(2, 0, 400).inputs[0].double()
    levels = (lit - plain).mean((-2, -1), keepdim=True)
    assert torch.allclose(lit - plain, levels.expand_as(lit), atol=1e-5)
    assert float(levels.std()) == pytest.approx(2.0 * 0.5, rel=0.1)
    assert abs(float(torch.corrcoef(levels.reshape(400, 3).T)[0, 1])) < 0.2
    assert PinkNoise(SEED, (40,), LABELS, brightness=1.0).batch(0, 0, 3).inputs[0].shape == (3, 40)
    one = PinkNoise(SEED, (5, 4), LABELS, brightness=1.0).batch(0, 2, 1).inputs[0]
    assert torch.equal(one, PinkNoise(SEED, (5, 4), LABELS, brightness=1.0).batch(0, 0, 3).inputs[0][2:])


def test_features_are_pink_along_their_index() -> None:
    x = PinkNoise(SEED, (256,), LABELS, alpha=1.0).batch(0, 0, 256).inputs[0].numpy()
    power = np.square(np.abs(np.fft.rfft(x))).mean(axis=0)[1:]
    frequency = np.fft.rfftfreq(256)[1:]
    assert np.polyfit(np.log(frequency), np.log(power), 1)[0] == pytest.approx(-1.0, abs=0.05)


def test_a_constant_image_does_not_divide_by_zero() -> None:
    assert np.isfinite(pink_filter(np.zeros((2, 4, 4)), 1.0)).all()


def test_probes_do_not_depend_on_how_they_are_batched() -> None:
    for probe in (
        PinkNoise(SEED, (1, 6, 5), LABELS),
        TokenProbe(SEED, 100, 12, LABELS),
        ZipfDocuments(SEED, 50, LABELS),
    ):
        whole = probe.batch(7, 0, 6)
        parts = [probe.batch(7, first, 2) for first in (0, 2, 4)]
        for i, tensor in enumerate(whole.inputs):
            assert torch.equal(tensor, torch.cat([part.inputs[i] for part in parts]))
        assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))
        assert not torch.equal(whole.inputs[0], probe.batch(8, 0, 6).inputs[0])
        assert SEED.hex() in str(probe.describe())
        assert "SEED" not in repr(probe)


def test_labels_are_uniform_and_independent_of_the_inputs() -> None:
    labels = UniformLabels(4, (3,)).draw(SEED, 0, 0, 4000)
    assert labels.shape == (4000, 3)
    counts = np.bincount(labels.numpy().reshape(-1), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-4
    targets = NormalTargets((2,), scale=3.0).draw(SEED, 0, 0, 2000)
    assert float(targets.std()) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("exponent", "size", "expected"),
    [
        (1.0, 10, {1: 0.341417152147, 2: 0.341417152147 + 0.170708576074}),
        (1.0, 1000, {1: 0.133592130492, 10: 0.391287109192, 100: 0.692992814250}),
        (1.0, 30522, {1: 0.091714216158, 10: 0.268628027564, 100: 0.475756262945}),
        (1.07, 30522, {1: 0.126038437368, 100: 0.570013090536}),
    ],
)
def test_golden_zipf_probabilities(exponent: float, size: int, expected: dict[int, float]) -> None:
    """Sums of the leading probabilities, from the harmonic numbers."""
    cumulative = np.cumsum(zipf_probabilities(size, exponent))
    for rank, value in expected.items():
        assert cumulative[rank - 1] == pytest.approx(value, abs=2e-12)


def test_golden_zipf_entropy() -> None:
    p = zipf_probabilities(30522)
    assert -(p * np.log2(p)).sum() == pytest.approx(10.4915381320, abs=1e-9)


def test_tokens_follow_their_law() -> None:
    """10^6 draws, the 50 most frequent tokens and the rest; fails by chance once in 10^4 seeds."""
    stream = PublicStream(SEED, "test", 0, 0)
    p = zipf_probabilities(1000)
    draws = np.searchsorted(np.cumsum(p), stream.uniform(10**6), side="right")
    counts = np.bincount(draws, minlength=1000)
    cells = np.append(counts[:50], counts[50:].sum())
    assert stats.chisquare(cells, 10**6 * np.append(p[:50], p[50:].sum())).pvalue > 1e-4


@pytest.mark.parametrize("law", ["zipf", "uniform"])
def test_token_sequences_have_their_form(law: str) -> None:
    probe = TokenProbe(
        SEED, 1200, 16, LABELS, low=999, law=law, length_min=5, first_token=101, last_token=102, padding=0
    )
    tokens, mask = probe.batch(0, 0, 400).inputs
    lengths = mask.sum(1)
    assert set(lengths.tolist()) == set(range(5, 17))
    for row, length in zip(tokens, lengths, strict=True):
        n = int(length)
        assert int(row[0]) == 101
        assert int(row[n - 1]) == 102
        assert int(row[1 : n - 1].min()) >= 999
        assert not bool(row[n:].any())
    counted = np.bincount(tokens.numpy().reshape(-1), minlength=1200) / tokens.numel()
    expected = probe.token_frequencies()
    assert expected.sum() == pytest.approx(1.0)
    error = np.sqrt(expected / tokens.numel())
    assert (np.abs(counted - expected) <= 6 * error + 2e-3 * (expected > 0.05)).all()


def test_tokens_without_special_ones() -> None:
    probe = TokenProbe(SEED, 50, 8, LABELS, mask=False, length_min=8)
    (tokens,) = probe.batch(0, 0, 5).inputs
    assert int(tokens.min()) >= 1
    assert probe.token_frequencies()[0] == 0.0


def test_documents_have_length_one() -> None:
    x = ZipfDocuments(SEED, 60, LABELS, exponent=1.1).batch(0, 0, 50).inputs[0]
    assert torch.allclose(x.norm(dim=1), torch.ones(50), atol=1e-6)
    assert float((x > 0).float().mean(0)[0]) > float((x > 0).float().mean(0)[30:].mean())


def test_public_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "inputs.npy", np.arange(24, dtype=np.float64).reshape(6, 2, 2))
    probe = PublicFolder(tmp_path, SEED, LABELS)
    batch = probe.batch(0, 0, 8)
    assert batch.inputs[0].shape == (8, 2, 2)
    assert batch.inputs[0].dtype is torch.float32
    unlabelled = probe.digest
    np.save(tmp_path / "labels.npy", np.arange(6))
    labelled = PublicFolder(tmp_path, SEED, LABELS)
    batch = labelled.batch(0, 0, 8)
    assert torch.equal(batch.targets, (batch.inputs[0][:, 0, 0] / 4).long())
    assert labelled.digest != unlabelled
    assert labelled.describe()["digest"] == labelled.digest


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"inputs": np.array([{}], dtype=object)},
        {"inputs": np.zeros((0, 3))},
        {"inputs": np.array(["a"])},
        {"inputs": np.zeros((3, 2)), "labels": np.zeros(2)},
    ],
)
def test_public_folder_refuses(arrays: dict[str, NDArray[np.generic]], tmp_path: Path) -> None:
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    with pytest.raises(InvalidParameter, match="probe"):
        PublicFolder(tmp_path, SEED, LABELS)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("shape", lambda: PinkNoise(SEED, (1, 2, 3, 4), LABELS)),
        ("shape", lambda: PinkNoise(SEED, (1,), LABELS)),
        ("shape", lambda: PinkNoise(SEED, (0, 3), LABELS)),
        ("alpha", lambda: PinkNoise(SEED, (3, 3), LABELS, alpha=float("nan"))),
        ("convention", lambda: PinkNoise(SEED, (3, 3), LABELS, convention="brown")),
        ("scale", lambda: PinkNoise(SEED, (3, 3), LABELS, scale=0.0)),
        ("classes", lambda: UniformLabels(0)),
        ("low", lambda: TokenProbe(SEED, 10, 8, LABELS, low=10)),
        ("law", lambda: TokenProbe(SEED, 10, 8, LABELS, law="pink")),
        ("length_min", lambda: TokenProbe(SEED, 10, 4, LABELS)),
        ("last_token", lambda: TokenProbe(SEED, 10, 8, LABELS, last_token=10)),
        ("length_max", lambda: ZipfDocuments(SEED, 10, LABELS, length_max=2)),
        ("seed", lambda: PublicStream(b"short", "x", 0, 0)),
    ],
)
def test_parameters_are_checked(field: str, make: object) -> None:
    with pytest.raises(InvalidParameter, match=field):
        make()  # type: ignore[operator] # a lambda
