"""What the suites of training runs share: a small labelled data set, its configuration, a ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evertally.pipelines.training.config import TrainConfig, load_train_config

SCOPE = 'scope = "people"\nepsilon_cap = 8\ndelta_cap = 1e-5\norder = 8\nledger = "budget.ledger"'
LITTLE_NOISE = {
    "privacy": "noise_multiplier = 1.0\ndelta = 1e-5",
    "budget": SCOPE.replace("epsilon_cap = 8", "epsilon_cap = 1000"),
}
"""Under fresh keys a short run learns as well every time; at 4.0 one in some hundreds does not."""


def blobs(count: int, seed: int = 0, features: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian blobs, one a class; easy to tell apart."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, features)) * 2.0
    return (centres[labels] + random.normal(size=(count, features))).astype(np.float32), labels


@dataclass
class Toy:
    """A run on blobs in a folder; every table of its configuration can be replaced."""

    folder: Path
    examples: int = 240
    tables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.tables = dict(self.tables)
        features, labels = blobs(self.examples)
        np.savez(self.folder / "train.npz", x=features, y=labels)
        features, labels = blobs(600, seed=1)
        np.savez(self.folder / "test.npz", x=features, y=labels)

    def text(self) -> str:
        base = {
            "run": 'name = "toy"\nfolder = "run"\nkey_file = "toy.key"\nseed = 5',
            "data": 'path = "train.npz"\nfeatures = "x"\nshape = [6]\nlabel = "y"\nclasses = 3\n'
            'held_out = "test.npz"',
            "model": 'kind = "mlp"\nhidden = [8]',
            "preconditioner": 'transform = "relative"\nprobes = 64',
            "optimiser": 'kind = "sgd"\nrate = 0.3\nmomentum = 0.5',
            "training": 'batches = 8\nepochs = 2\nstrategy = "bsr"\nbands = 3\nexpected_units = 240\n'
            "checkpoint_steps = 4",
            "privacy": "noise_multiplier = 4.0\ndelta = 1e-5",
            "budget": SCOPE,
        }
        tables = {**base, **self.tables}
        return "\n".join(f"[{name}]\n{text}" for name, text in tables.items() if text)

    def path(self) -> Path:
        path = self.folder / "train.toml"
        path.write_text(self.text())
        return path

    def config(self) -> TrainConfig:
        return load_train_config(self.path())

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def steps(self) -> list[dict[str, Any]]:
        path = self.run / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def spent(self) -> tuple[int, int]:
        """Committed charges and units spent, straight from the ledger."""
        from evertally.accountants.budget import open_ledger

        ledger = open_ledger(self.folder / "budget.ledger", create=False)
        try:
            committed = [row for row in ledger.charges("people") if row.event == "committed"]
            return len(committed), ledger.scope_status("people").spent.main
        finally:
            ledger.close()
