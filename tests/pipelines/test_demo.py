"""The demo: its totals are near the truth by exactly the stated error, and its bytes are stable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, parse_mechanism
from evertally.pipelines.bounding import UnitBound, UnitBounder, UnitNumbers
from evertally.pipelines.closings import TickSums
from evertally.pipelines.dead_letters import DeadLetterFile
from evertally.pipelines.events import EventParser
from evertally.pipelines.local import demo
from evertally.pipelines.local.aggregate import aggregate
from evertally.pipelines.local.csv_source import CsvSource
from evertally.pipelines.local.demo import CARRIERS, demo_config, true_totals
from evertally.pipelines.local.lines import LineReader
from evertally.pipelines.raw_records import FieldNames
from evertally.pipelines.releases import read_releases
from evertally.testing import HistoryChecker

Cli = Callable[..., tuple[int, str, str]]
EVENTS, AIRCRAFT, COUNTED = 328_521, 4037, 35_124
BAND = 6.5  # standard errors; 320 totals leave it with probability 320 x 8.0e-11 = 2.6e-8
CHI_SQUARE_LOW, CHI_SQUARE_HIGH = 198.0, 482.0  # chi-square of 320: outside with probability about 1e-8 each


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with as_file(files("evertally.pipelines.local") / "data" / "departures.csv.gz") as path:
        yield path


def sums_of(data: Path, folder: Path, bound: UnitBound | None = None) -> tuple[TickSums, UnitNumbers]:
    config = demo_config(data, folder)
    numbers = UnitNumbers(bytes(32))
    fields = FieldNames("timestamp", "carrier", None, None if bound is None else "tail")
    parser = EventParser(config.ticks, CARRIERS, None, None, config.source.values, numbers)
    source = CsvSource(LineReader(str(data)), fields)
    bounder = None if bound is None else UnitBounder(bound, config.ticks)
    with DeadLetterFile(folder / "dead") as letters:
        sums = aggregate(source, parser, config.ticks, len(CARRIERS), bounder, letters)
    assert (folder / "dead").read_bytes() == b""
    return sums, numbers


@pytest.mark.slow
def test_every_departure_is_counted_once(data: Path, tmp_path: Path) -> None:
    sums, _ = sums_of(data, tmp_path)
    rows = sums.rows(0, 8761)
    truth = true_totals(data)
    assert rows.sum() == sum(truth.values()) == EVENTS
    assert dict(zip(CARRIERS, rows.sum(axis=0).tolist(), strict=True)) == truth


@pytest.mark.slow
def test_aircraft_active_counts_what_its_bound_lets_through(data: Path, tmp_path: Path) -> None:
    sums, numbers = sums_of(data, tmp_path, UnitBound(13, 672, 1))
    # counted once with dictionaries: each aircraft's sorted ticks, the earliest 672 apart, at most 13
    assert sums.rows(0, 8761).sum() == COUNTED
    assert len(numbers._numbers) == AIRCRAFT


def errors_in_stderr(sums: TickSums, folder: Path, data: Path, secrets: list[bytes]) -> NDArray[np.float64]:
    """(noisy - true)/stderr at the last tick, shape (keys of noise, carriers)."""
    spec = demo_config(data, folder).spec
    rows = sums.rows(0, 8761)
    exact = rows.sum(axis=0)
    errors = []
    for secret in secrets:
        key = NoiseKey(secret, stream="departures", stream_id=bytes(16), incarnation=1)
        source = KeyedNoise(key, tuple(range(len(CARRIERS))))
        bank = CounterBank(parse_mechanism(spec.mechanism), spec.grid, source)
        last = bank.close_ticks(rows.tolist())[-1]
        stderr = float(last.standard_error)
        assert abs(stderr - 20.53) < 0.01
        errors.append((np.array(last.values) - exact) / stderr)
    return np.array(errors)


@pytest.mark.slow
def test_totals_stay_in_their_bands_for_twenty_keys(data: Path, tmp_path: Path) -> None:
    sums, _ = sums_of(data, tmp_path)
    errors = errors_in_stderr(sums, tmp_path, data, [bytes([n]) * 32 for n in range(1, 21)])
    assert errors.shape == (20, 16)
    assert np.abs(errors).max() < BAND
    assert CHI_SQUARE_LOW < (errors**2).sum() < CHI_SQUARE_HIGH


@pytest.mark.soak
def test_totals_stay_in_their_bands_for_fresh_keys(data: Path, tmp_path: Path) -> None:
    sums, _ = sums_of(data, tmp_path)
    errors = errors_in_stderr(sums, tmp_path, data, [os.urandom(32) for _ in range(20)])
    assert np.abs(errors).max() < BAND
    assert CHI_SQUARE_LOW < (errors**2).sum() < CHI_SQUARE_HIGH


@pytest.mark.slow
def test_the_demo_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out_folder = tmp_path / "demo"
    code, out, err = cli("demo", "--out", out_folder)
    assert code == 0, err
    assert "8761/8761" in err  # the progress bar's last state
    for word in (
        "noisy total",
        "standard error",
        "true total",
        "57,979",
        "Guarantee: ",
        "mu = 0.2366",
        "rational:W32",
    ):
        assert word in out
    header, releases = read_releases(out_folder / "releases.jsonl")
    checker = HistoryChecker()
    checker.see_file(header, releases)
    assert checker.anomalies() == []
    assert (out_folder / "totals.png").read_bytes().startswith(b"\x89PNG")
    first = (out_folder / "releases.jsonl").read_bytes()
    assert first.count(b"\n") == 1 + 8761 * 16

    # again: no new charge, the same bytes; and as where matplotlib, an extra, is not installed
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    code, out, _ = cli("demo", "--out", out_folder, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["picture"] is None
    assert (out_folder / "releases.jsonl").read_bytes() == first
    assert [row["carrier"] for row in result["carriers"]] == list(CARRIERS)
    assert all(abs(row["error_in_stderr"]) < BAND for row in result["carriers"])
    assert abs(result["stderr"] - 20.53) < 0.01
    assert abs(result["stderr_known_end"] - 16.71) < 0.01
    assert result["epsilon"] <= 1
