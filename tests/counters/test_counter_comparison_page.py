"""docs/comparison.md holds what its script computes."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_computed_block_is_up_to_date() -> None:
    script = ROOT / "tests" / "benchmarks" / "make_counter_comparison.py"
    spec = importlib.util.spec_from_file_location("make_counter_comparison", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "comparison.md").read_text()
    assert module.with_block(page, "counter", module.computed()) == page
