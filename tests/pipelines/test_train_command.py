"""`evertally train` without PyTorch: its configuration, its documentation, its refusal."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evertally.pipelines.config_table import ConfigTable, InvalidConfig
from evertally.pipelines.training.config import load_train_config
from evertally.pipelines.training.run_metrics import PUBLIC_TRAINING_METRICS

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to-train.md"
CONFIG = """
[run]
name = "r"
folder = "run"
key_file = "r.key"
[data]
path = "x.npz"
features = "x"
shape = [3]
label = "y"
classes = 2
[optimiser]
rate = 0.1
[training]
batches = 4
epochs = 2
expected_units = 40
[privacy]
noise_multiplier = 2.0
delta = 1e-5
[budget]
scope = "s"
ledger = "l"
epsilon_cap = 8
delta_cap = 1e-5
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    path = tmp_path / "train.toml"
    path.write_text(CONFIG)
    return path


def test_the_command_line_starts_without_torch() -> None:
    program = (
        "import sys; import evertally.pipelines.cli.app, evertally.pipelines.cli.train_command;"
        "import evertally.pipelines.training.config; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_the_extra_the_command_says_what_to_install(config: Path) -> None:
    program = "from evertally.pipelines.cli.app import main; main()"
    words = [sys.executable, "-c", program, "train", "--config", str(config)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`make train-venv`" in done.stderr


def test_defaults_are_those_of_the_page(config: Path) -> None:
    found = load_train_config(config)
    assert found.mechanism.divisor == 10.0
    assert (found.probe.transform, found.probe.kind, found.probe.alpha, found.probe.count) == (
        "relative",
        "pink",
        2.0,
        512,
    )
    assert found.mechanism.clip == 1.0
    assert found.budget.scope is not None
    assert found.budget.scope.filter == "renyi"


def test_passwords_come_from_the_environment(config: Path) -> None:
    text = CONFIG.replace('path = "x.npz"', 'format = "kafka"')
    kafka = '\n[kafka]\nbootstrap_servers = "k:1"\ntopic = "t"\nsecurity_protocol = "SASL_SSL"\n'
    config.write_text(text + kafka + 'sasl_mechanism = "PLAIN"\nusername = "u"\n')
    with pytest.raises(InvalidConfig, match="password"):
        load_train_config(config, {})
    found = load_train_config(config, {"EVERTALLY_KAFKA_PASSWORD": "pa55word"})
    assert found.data.broker is not None
    assert found.data.broker.password == "pa55word"
    assert "pa55word" not in repr(found)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('ledger = "l"', 'ledger = "l"\nservice = "http://x"', "budget.ledger"),
        ("expected_units = 40", "expected_units = 40\ndivisor = 3.0", "training.divisor"),
        ("expected_units = 40", "", "training.divisor"),
        ("noise_multiplier = 2.0", "noise_multiplier = 2.0\nepsilon = 1.0", "privacy"),
        ("noise_multiplier = 2.0", "noise_multiplier = nan", "privacy.noise_multiplier"),
        ("noise_multiplier = 2.0", 'unit = "person"\nnoise_multiplier = 2.0', "data.unit"),
        ("batches = 4", 'batches = 4\nstrategy = "bsr"', "training.bands"),
        ("batches = 4", 'batches = 4\nstrategy = "blt"', "training.output_scales"),
        ("shape = [3]", "shape = [0]", "shape"),
        ('features = "x"', 'features = ["a", "b"]', "data.features"),
        ('path = "x.npz"', 'path = "none.npz"', "data.path"),
        ("[optimiser]", '[preconditioner]\nprobe = "public:none"\n[optimiser]', "preconditioner.probe"),
        ("rate = 0.1", "rate = 0.1\nmomentum = 1.0", "optimiser.momentum"),
    ],
)
def test_each_mistake_is_named(config: Path, old: str, new: str, field: str) -> None:
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(InvalidConfig) as caught:
        load_train_config(config)
    assert field in {mistake.field for mistake in caught.value.mistakes}


def test_the_page_describes_every_key_and_every_metric(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, asked = PAGE.read_text("utf-8"), set()
    plain = ConfigTable.raw

    def raw(table: ConfigTable, key: str, expected: str, *, required: bool = True) -> object | None:
        asked.add(key)
        return plain(table, key, expected, required=required)

    monkeypatch.setattr(ConfigTable, "raw", raw)
    load_train_config(config)
    missing = [key for key in asked if not re.search(rf"\b{key}\b", page)]
    assert not missing, missing
    for name in PUBLIC_TRAINING_METRICS:
        assert f"evertally_{name}" in page
    assert "`evertally train --config" in page
