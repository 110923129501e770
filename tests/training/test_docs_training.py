"""The tutorial's last part: a model from what its streams have left of the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.docs.play import play

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]


def test_the_tutorial_ends_with_a_model(tmp_path: Path) -> None:
    differences = play(ROOT / "docs" / "tutorial.md", tmp_path, "train")
    assert not differences, "\n\n".join(map(str, differences))
