"""Attention models of the common libraries' kinds go through the real loading, checking and training code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training import training_modules as modules
from tests.training.training_runs import SCOPE, Toy

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import build_components

pytestmark = pytest.mark.train

IMAGES = ("vision_transformer", "cross_transformer", "cross_transformer_head")
TEXTS = ("encoder", "encoder_head")


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One bright row of blocks a class, under noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, modules.CLASSES, count)
    x = 0.3 * random.standard_normal((count, 1, modules.SIDE, modules.SIDE))
    for row, label in enumerate(labels):
        x[row, :, 2 * label : 2 * label + 3] += 2.0
    return x.astype(np.float32), labels


def texts(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[first] words of the class [last] padding."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, modules.CLASSES, count)
    x = np.zeros((count, modules.LENGTH), np.int64)
    for row, label in enumerate(labels):
        words = int(random.integers(3, modules.LENGTH - 1))
        x[row, 0], x[row, words + 1] = modules.FIRST, modules.LAST
        x[row, 1 : words + 1] = modules.LOW + 10 * label + random.integers(0, 10, words)
    return x, labels


def run_of(factory: str, folder: Path) -> Toy:
    """A short run of a factory on stand-in data, from a public file of starting parameters."""
    text = factory in (*TEXTS, "broadcasting_encoder")
    toy = Toy(folder)
    for name, seed in (("train", 0), ("test", 1)):
        x, y = (texts if text else images)(300, seed)
        np.savez(toy.folder / f"{name}.npz", x=x, y=y)
    shape = f"[{modules.LENGTH}]" if text else f"[1, {modules.SIDE}, {modules.SIDE}]"
    torch.manual_seed(7)
    start = getattr(modules, factory)().state_dict()
    safetensors.torch.save_file(start, str(toy.folder / "start.safetensors"))
    toy.tables = {
        "data": f'path = "train.npz"\nfeatures = "x"\nshape = {shape}\nlabel = "y"\n'
        f"classes = {modules.CLASSES}\n"
        f'tokens = {modules.VOCABULARY if text else 0}\nheld_out = "test.npz"',
        "model": f'kind = "factory"\nfactory = "tests.training.training_modules:{factory}"\n'
        'init = "start.safetensors"',
        "preconditioner": "probes = 64\n"
        + (
            f"low = {modules.LOW}\nfirst_token = {modules.FIRST}\nlast_token = {modules.LAST}" if text else ""
        ),
        "optimiser": 'kind = "sgd"\nrate = 0.3\nmomentum = 0.5',
        "training": "batches = 4\nepochs = 10\nexpected_units = 300\ncheckpoint_steps = 20",
        "privacy": "noise_multiplier = 0.5\ndelta = 1e-5",
        "budget": SCOPE.replace("epsilon_cap = 8", "epsilon_cap = 1000"),
    }
    return toy


@pytest.mark.parametrize("factory", [*IMAGES, *TEXTS])
def test_attention_models_train_from_a_public_file(factory: str, tmp_path: Path) -> None:
    toy = run_of(factory, tmp_path / "toy")
    report = train_run(toy.config())
    assert report.steps == 40
    start = safetensors.torch.load_file(str(toy.folder / "start.safetensors"))
    end = safetensors.torch.load_file(str(toy.run / "model.safetensors"))
    trained = {name for name, p in getattr(modules, factory)().named_parameters() if p.requires_grad}
    for name, tensor in start.items():
        assert torch.equal(tensor, end[name]) == (name not in trained), name
    assert report.measured is not None
    if factory in ("vision_transformer", "cross_transformer", "encoder"):
        assert report.measured > 0.5  # three classes; 0.67 is usual


@pytest.mark.parametrize("factory", ["vision_transformer", "cross_transformer", "encoder"])
def test_their_clipped_sums_equal_the_materialised_reference(
    factory: str, materialised: Callable[..., Any], tmp_path: Path
) -> None:
    config = run_of(factory, tmp_path / "toy").config()
    parts = build_components(config, "cpu")
    model = parts.model.double()
    parts.preconditioner.refresh(model, 0)
    x, y = (texts if factory == "encoder" else images)(6, 3)
    inputs = torch.from_numpy(x)
    batch = MicroBatch((inputs if factory == "encoder" else inputs.double(),), torch.from_numpy(y))
    loss = CrossEntropy()
    expected, norms = materialised(model.eval(), loss, parts.preconditioner, batch, 0.5)
    found = GhostClipper(model, loss, parts.preconditioner, clip_norm=0.5).sum([batch]).tensors
    assert float(norms.min()) < float(norms.max())
    for name, tensor in found.items():
        assert float((tensor - expected[name]).norm()) <= 1e-9 * float(expected[name].norm()) + 1e-12, name


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("plain_vision_transformer", r"layer patch_embed: Patches has trainable parameters"),
        ("broadcasting_encoder", r"layer positions: its first dimension is not the examples"),
        ("borrowing", r"layer inner: inner\.weight is used outside"),
    ],
)
def test_what_would_be_unsound_is_refused_before_any_charge(factory: str, words: str, tmp_path: Path) -> None:
    toy = run_of(factory, tmp_path / "toy")
    with pytest.raises(UnsupportedMechanism, match=words):
        train_run(toy.config())
    assert not (toy.folder / "budget.ledger").exists()
    toy.tables["preconditioner"] = 'transform = "none"'
    with pytest.raises(UnsupportedMechanism, match=words):
        train_run(toy.config())
