"""What a list of layers does not give away is found on public inputs, before any private example."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training import training_awkward as awkward
from tests.training.training_runs import LITTLE_NOISE, Toy
from torch import nn

from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.layers import inventory
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.run import train_run
from evertally.pipelines.training.run_components import _of_form
from evertally.pipelines.training.taps_check import check_model

pytestmark = pytest.mark.train

SHORT = "batches = 4\nepochs = 2\nexpected_units = 240\ncheckpoint_steps = 4"


def look(model: nn.Module, *, tokens: int = 0) -> None:
    torch.manual_seed(0)
    form = ExampleForm(("x",), (awkward.FEATURES,), tokens, "y", awkward.CLASSES, "")
    check_model(model, CrossEntropy(), _of_form(form, 5))


@pytest.mark.parametrize(
    ("words", "make", "tokens"),
    [
        ("mean changes when the model runs", awkward.Counting, 0),
        ("remembers earlier examples", awkward.Remembering, 0),
        ("draws at random", awkward.Masking, 0),
        ("loss depends on the other examples", awkward.Cumulative, 0),
        ("layer inner: its rows are not the examples'", awkward.Sorting, 0),
        ("layer inner: its rows are not the examples'", lambda: awkward.Sorting(by_length=True), 20),
        ("layer head: its input is a keyword argument", awkward.ByName, 0),
    ],
)
def test_what_mixes_or_keeps_examples_is_refused(
    words: str, make: Callable[[], nn.Module], tokens: int
) -> None:
    with pytest.raises(UnsupportedMechanism, match=words):
        look(make(), tokens=tokens)


def test_sequences_that_lie_beside_the_examples_are_refused_where_their_number_is_the_same() -> None:
    """(T, B, d) with T = B: the first dimension alone does not tell."""

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner(x.transpose(0, 1)).mean(0))

    torch.manual_seed(0)
    with pytest.raises(UnsupportedMechanism, match="layer inner: its rows"):
        check_model(
            TimeFirst(), CrossEntropy(), MicroBatch((torch.randn(4, 4, 2),), torch.randint(0, 3, (4,)))
        )


def test_layers_with_other_parameters_than_their_own_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedMechanism, match="layer 0: lora is no parameter"):
        inventory(awkward.adapted())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))  # type: ignore[no-untyped-call] # torch's
        empty = nn.Sequential(nn.Linear(2, 0), nn.Linear(0, 2))
    with pytest.raises(UnsupportedMechanism, match="weight_g, weight_v"):
        inventory(old)
    with pytest.raises(UnsupportedMechanism, match="without elements"):
        inventory(empty)


def toy_of(factory: str, folder: Path) -> Toy:
    toy = Toy(folder, tables={"training": SHORT, **LITTLE_NOISE})
    toy.tables["model"] = f'kind = "factory"\nfactory = "tests.training.training_awkward:{factory}"'
    return toy


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["shared", "shared_buffer", "double"])
def test_what_is_accepted_trains_to_its_end(factory: str, tmp_path: Path) -> None:
    """Two names for one tensor, or doubles: found out after the charge, the budget is lost for nothing."""
    toy = toy_of(factory, tmp_path / "toy")
    report = train_run(toy.config())
    assert report.measured is not None
    assert report.measured > 0.8


@pytest.mark.slow
def test_a_buffer_that_comes_to_hold_examples_is_not_released(tmp_path: Path) -> None:
    toy = toy_of("counting_later", tmp_path / "toy")
    with pytest.raises(IntegrityError, match="nothing of these steps is released"):
        train_run(toy.config())
    assert toy.steps() == []
    assert not (toy.run / "model.safetensors").exists()


def test_too_few_outputs_are_found_before_the_charge(tmp_path: Path) -> None:
    toy = toy_of("few", tmp_path / "toy")
    with pytest.raises(InvalidParameter, match="2 outputs"):
        train_run(toy.config())
    assert not (toy.folder / "budget.ledger").exists()


@pytest.mark.slow
def test_a_start_that_no_seed_decides_is_found_before_the_charge(tmp_path: Path) -> None:
    toy = toy_of("unseeded", tmp_path / "toy")
    with pytest.raises(InvalidParameter, match="the same parameters at every call"):
        train_run(toy.config())
    assert not (toy.folder / "budget.ledger").exists()
    safetensors.torch.save_file(awkward.unseeded().state_dict(), str(toy.folder / "start.safetensors"))
    toy.tables["model"] += '\ninit = "start.safetensors"'
    assert train_run(toy.config()).steps == 8


@pytest.mark.parametrize(
    ("inputs", "labels", "words"),
    [
        (np.zeros((5, 7), np.float32), None, r"shape \(n, 6\)"),
        (np.zeros((5, 6), np.uint8), None, "floats"),
        (np.zeros((5, 6), np.float32), np.array([0, 1, 2, 3, 0]), "labels.npy"),
        (np.zeros((5, 6), np.float32), np.zeros((5, 2), np.int64), "labels.npy"),
    ],
)
def test_a_public_folder_of_another_form_is_found_before_the_charge(
    inputs: np.ndarray, labels: np.ndarray | None, words: str, tmp_path: Path
) -> None:
    toy = Toy(tmp_path / "toy", tables={"preconditioner": 'probe = "public:public"\nprobes = 8'})
    (toy.folder / "public").mkdir()
    np.save(toy.folder / "public" / "inputs.npy", inputs)
    if labels is not None:
        np.save(toy.folder / "public" / "labels.npy", labels)
    with pytest.raises(InvalidParameter, match=words):
        train_run(toy.config())
    assert not (toy.folder / "budget.ledger").exists()
