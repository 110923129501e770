"""The declared public file: checked before any charge, and whose records they are is of no account."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.training.training_runs import Toy, blobs

from evertally.errors import InvalidParameter
from evertally.pipelines.training.run import train_run

pytestmark = pytest.mark.train

UNITS = (
    'path = "train.npz"\nfeatures = "x"\nshape = [6]\nlabel = "y"\nclasses = 3\nunit = "visitor"\n'
    'records_per_unit = 1\nheld_out = "test.npz"'
)
SHORT = "batches = 4\nepochs = 1\nexpected_units = 240\ncheckpoint_steps = 4"


def test_a_file_of_another_form_is_found_before_the_budget_is_spent(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    np.savez(toy.folder / "test.npz", x=np.zeros((5, 7), np.float32), y=np.zeros(5, np.int64))
    with pytest.raises(InvalidParameter):
        train_run(toy.config())
    assert not (toy.folder / "budget.ledger").exists()


def test_public_records_need_no_unit(tmp_path: Path) -> None:
    privacy = 'unit = "visitor"\nnoise_multiplier = 4.0\ndelta = 1e-5'
    toy = Toy(tmp_path / "toy", tables={"data": UNITS, "privacy": privacy, "training": SHORT})
    features, labels = blobs(240)
    np.savez(toy.folder / "train.npz", x=features, y=labels, visitor=np.arange(240))
    assert train_run(toy.config()).measured is not None
