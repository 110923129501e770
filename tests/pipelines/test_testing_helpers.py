"""The public test helpers do what they say, and nothing of the shipped program can reach them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from evertally.counters import CounterBank, KeyedNoise, NoiseKey, Rational
from evertally.counters.factorization import NoiseSource
from evertally.errors import InvalidParameter
from evertally.pipelines.clock import AnchoredClock, Clock
from evertally.pipelines.releases import Release
from evertally.testing import (
    CrashPoints,
    FakeClock,
    FixedNoise,
    HistoryChecker,
    RecordingNoise,
    SimulatedCrash,
)

SOURCES = Path(__file__).resolve().parents[2]


def test_no_shipped_module_imports_the_helpers_or_reads_a_seed_from_the_environment() -> None:
    for portion in ("counters", "accountants", "pipelines"):
        for path in (SOURCES / portion).rglob("*.py"):
            if "testing" in path.parts:
                continue
            text = path.read_text()
            assert "evertally.testing" not in text, path
            assert not re.search(r"environ[^\n]*(SEED|NOISE)", text, re.IGNORECASE), path


def test_clocks() -> None:
    clocks: list[Clock] = [FakeClock(5), AnchoredClock()]
    assert clocks[0].now_ms() == 5
    before = clocks[1].now_ms()
    assert clocks[1].now_ms() >= before
    assert abs(clocks[1].wall_step_ms()) < 1000
    fake = FakeClock(5)
    fake.step_wall(-90_000)
    assert (fake.now_ms(), fake.wall_step_ms()) == (5, -90_000)
    with pytest.raises(InvalidParameter):
        fake.advance(-1)


def test_the_release_is_one_addition_of_integers() -> None:
    """Sum, noise and h arrive as integers; with known noise the release is their rounded sum exactly."""
    keyed: NoiseSource = KeyedNoise(
        NoiseKey(bytes(32), stream="s", stream_id=bytes(16), incarnation=1), (0, 1)
    )
    recording = RecordingNoise(keyed)
    data = np.random.default_rng(2).integers(0, 2**40, (300, 2)).tolist()
    mechanism = Rational.preset("W32")
    bank = CounterBank.for_mu(mechanism, mu=0.5, source=recording)
    silent = CounterBank.for_mu(mechanism, mu=0.5, source=FixedNoise.zero(2))
    engine = mechanism.engine(FixedNoise(recording.block(1, 300)))
    z, h = engine.run(300)
    assert z.dtype == h.dtype == recording.draws().dtype == np.int64
    q = bank.grid.q
    assert isinstance(q, int)
    totals = [0, 0]
    for t, (tick, exact) in enumerate(zip(bank.close_ticks(data), silent.close_ticks(data), strict=True)):
        totals = [total + amount for total, amount in zip(totals, data[t], strict=True)]
        assert all(type(value) is int for value in (*tick.values, *totals))
        assert exact.values == tuple(totals)
        for key in range(2):
            a = q * totals[key] + int(z[t, key]) + int(h[t, key])
            assert tick.values[key] == (2 * a + q) // (2 * q)


def test_fixed_noise_wants_integers() -> None:
    with pytest.raises(InvalidParameter):
        FixedNoise(np.zeros((2, 2)))  # type: ignore[arg-type]  # floats are what is refused


def release(t: int, key: str = "a", value: int = 1) -> Release:
    return Release("s", key, 1, t, t * 1000, value, 1.0, "rational:W32")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([release(1), release(2), release(2)], None),
        ([release(1), release(1, value=2)], "2 values"),
        ([release(1), release(3)], "gap"),
        ([release(2)], "gap"),
        ([release(1), release(2), release(1, "b")], "different ticks"),
        ([release(1), release(1)._replace(tick_end_ms=7)], "2 values"),
    ],
)
def test_the_history_checker_finds_seeded_faults(seen: list[Release], expected: str | None) -> None:
    checker = HistoryChecker()
    checker.see(seen)
    found = checker.anomalies()
    assert found == [] if expected is None else any(expected in anomaly for anomaly in found)


def test_crash_points_count_and_crash_once() -> None:
    points = CrashPoints(2, "b")
    for name in ("a", "b", "a"):
        points.reach(name)
    with pytest.raises(SimulatedCrash):
        points.reach("b")
    assert points.reached == ["a", "b", "a"]
