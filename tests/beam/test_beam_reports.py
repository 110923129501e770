"""What others reported about Beam; two more stand in test_beam_stream.py, one in test_beam_deploy.py."""

from __future__ import annotations

import gc
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.beam.direct import DirectStream, run_bounded
from tests.contracts.engine_conformance import Case, Event

ROOT = Path(__file__).resolve().parents[2]


def test_leaking_versions_are_excluded() -> None:
    """apache/beam#39406: 2.67 to 2.75 leak memory when bundles fail."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (beam,) = [Requirement(text) for text in project["dependencies"] if text.startswith("apache-beam")]
    for minor in range(67, 76):
        assert f"2.{minor}.0" not in beam.specifier
        assert f"2.{minor}.1" not in beam.specifier
    assert "2.61.0" in beam.specifier
    assert importlib.metadata.version("apache-beam") in beam.specifier


@pytest.mark.soak
def test_failing_elements_do_not_grow_the_process(tmp_path: Path) -> None:
    """apache/beam#39406: jobs whose elements are all broken, again and again, in one process."""
    events = tuple(Event(1, "", raw=b"{") for _ in range(2000))
    sizes = []
    for n in range(30):
        folder = tmp_path / str(n)
        folder.mkdir()
        run_bounded(DirectStream(folder, Case("broken", events, ticks=1)))
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sizes.append(pages * 4096)
    assert sizes[-1] < sizes[9] * 1.2


def test_installed_packages_agree() -> None:
    """apache/beam#23982: Beam and its neighbours ask for versions of protobuf that exclude each other."""
    uv = ROOT / ".uv" / "bin" / "uv"
    words = ["pip", "check"]
    tool = [str(uv), *words, "--python", sys.executable] if uv.exists() else [sys.executable, "-m", *words]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
