"""The page of accuracies says what the runs beside the benchmark say, and nothing else."""

from __future__ import annotations

import pytest
from tests.benchmarks.kfc_page import PAGE, page
from tests.benchmarks.kfc_search import FRESH, Setting, key_of, load

pytestmark = pytest.mark.train


def _facts(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("Machine: ")]


def test_the_page_is_written_from_the_runs_that_are_kept() -> None:
    assert _facts(page(load())) == _facts(PAGE.read_text("utf-8"))


def test_another_figure_is_another_page() -> None:
    runs = load()
    keys = [key for key in runs if key.split("|")[:3] == ["mlp14", "1", "kfc-2"]]
    fresh = next(key for key in keys if key.endswith(f"|{FRESH[0]}"))
    runs[fresh] = {**runs[fresh], "accuracy": runs[fresh]["accuracy"] + 1.0}
    assert _facts(page(runs)) != _facts(PAGE.read_text("utf-8"))


def test_runs_without_noise_are_the_same_at_every_epsilon() -> None:
    setting = Setting(0.5, 0.3)
    assert key_of("mlp14", 8.0, "sgd", setting, 1) == key_of("mlp14", 1.0, "sgd", setting, 1)
    assert key_of("mlp14", 8.0, "dp-sgd", setting, 1) != key_of("mlp14", 1.0, "dp-sgd", setting, 1)
