"""Bins are durable before what says that they are complete; a record without a unit's name is no example."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from evertally.pipelines.config_table import InvalidConfig
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.allocation import Allocation
from evertally.pipelines.training.config import load_train_config
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.examples_files import FileExamples
from evertally.pipelines.training.examples_spool import ExampleSpool


def source(folder: Path, units: np.ndarray) -> tuple[FileExamples, ExampleForm]:
    path = folder / "train.npz"
    x = np.arange(2.0 * len(units), dtype=np.float32).reshape(-1, 2)
    np.savez(path, x=x, y=np.zeros(len(units), np.int64), who=units)
    form = ExampleForm(("x",), (2,), 0, "y", 3, "who")
    return FileExamples(path, "npz", form, folder / "refused.jsonl"), form


def test_bins_are_durable_before_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, form = source(tmp_path, np.arange(64))
    order: list[str] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    spool = ExampleSpool(tmp_path / "spool", Sealer(bytes(32), "s", 0), Allocation(bytes(32), 4), form, 10)
    spool.write(examples.read(examples.freeze()), "digest")
    bins = {path.name for path in (tmp_path / "spool").glob("bin-*")}
    assert len(bins) == 4
    assert set(order[: order.index("index.sealed")]) == bins


def test_records_without_a_units_name_are_left_out(tmp_path: Path) -> None:
    """Else all of them would be one unit, and each person behind them not bounded by it."""
    for units in (np.array(["ann", "", "ben", "", "\ud800"]), np.array([b"ann", b"", b"ben", b"", b"\xff"])):
        examples, _ = source(tmp_path, units)
        (block,) = examples.read(examples.freeze())
        assert [record.decode() for record in block.records] == ["0", "2", "4"]
        assert len(set(block.units)) == 3
        assert block.features[:, 0].tolist() == [0.0, 4.0, 8.0]


def test_quality_is_not_measured_on_the_training_file(tmp_path: Path) -> None:
    """The figure would be an exact one of private examples."""
    source(tmp_path, np.arange(4))
    (tmp_path / "same.npz").symlink_to("train.npz")
    text = (
        '[run]\nname = "toy"\nfolder = "run"\nkey_file = "k"\n'
        '[data]\npath = "train.npz"\nfeatures = "x"\nshape = [2]\nlabel = "y"\nclasses = 3\n'
        'held_out = "HELD"\n[optimiser]\nrate = 0.1\n[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-5\n'
        "[training]\nbatches = 2\nepochs = 1\nexpected_units = 4\n"
        '[budget]\nscope = "people"\nledger = "budget.ledger"\n'
    )
    for name in ("train.npz", "same.npz"):
        path = tmp_path / "train.toml"
        path.write_text(text.replace("HELD", name))
        with pytest.raises(InvalidConfig, match=r"data\.held_out"):
            load_train_config(path)
    (tmp_path / "other.npz").write_bytes((tmp_path / "train.npz").read_bytes())
    path.write_text(text.replace("HELD", "other.npz"))
    assert load_train_config(path).data.held_out == tmp_path / "other.npz"
