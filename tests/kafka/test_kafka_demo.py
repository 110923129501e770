"""`make kafka-demo`, shortened: everything starts, releases are shown, everything stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from evertally.pipelines.kafka.demo import run

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
POM = Path(__file__).parents[2] / "deploy" / "kafka" / "pom.xml"


def test_demo_shows_releases(kafka_jars: Path) -> None:
    console = Console(record=True, width=120)
    assert kafka_jars.is_dir()
    assert run(POM, seconds=15, speed=1000, console=console) >= 2
    shown = console.export_text()
    assert "Guarantee" in shown
    assert "one standard error" in shown
    assert "the broker is stopped" in shown
