"""Counters: one addition of integers, restart anywhere, neighbours differ by the data alone."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from evertally.counters import Contribution, CounterBank, KeyedNoise, NoiseKey, Rational, RunningCounter
from evertally.counters import bank as bank_module
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism

KEY = NoiseKey(bytes(range(32)), stream="bank", stream_id=bytes(16))
W32 = Rational.preset("W32")


def new_bank(keys: int = 3, mu: float = 1.0, slack_horizon: int = 2**30) -> CounterBank:
    return CounterBank.for_mu(W32, mu=mu, source=KeyedNoise(KEY, range(keys)), slack_horizon=slack_horizon)


def test_releases_are_totals_plus_noise_rounded_half_up() -> None:
    amounts = [[1, 0, 5], [0, 0, 0], [7, 2, 10**30]]
    bank = new_bank()
    releases = bank.close_ticks(amounts)
    z, h = W32.engine(KeyedNoise(KEY, range(3))).run(3)
    totals = np.cumsum(np.array(amounts, dtype=object), axis=0)
    q = bank.grid.q
    for t, release in enumerate(releases):
        for key, value in enumerate(release.values):
            # the definition: a/g = q S + z/g + round(h/g), published (2 a/g + q) // (2 q)
            on_grid = q * int(totals[t, key]) + int(z[t, key]) + int(h[t, key])
            assert value == (2 * on_grid + q) // (2 * q)
        assert release.t == t + 1


def test_release_is_computed_from_integers_in_one_addition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum, noise and history arrive as integer types; the sum first meets them in one int + int."""
    seen: list[tuple[type, ...]] = []

    class Traced(int):
        """An exact sum that records what it is added to."""

        def __add__(self, other: object) -> int:
            seen.append((type(self), type(other)))
            return int(self) + int(other)  # type: ignore[call-overload]  # an int, as asserted below

        __radd__ = __add__

    original = bank_module.noise_in_counts
    kinds: list[np.dtype] = []

    def traced_noise(z: np.ndarray, h: np.ndarray, q: int) -> np.ndarray:
        kinds.extend([z.dtype, h.dtype])
        assert type(q) is int
        return original(z, h, q)

    monkeypatch.setattr(bank_module, "noise_in_counts", traced_noise)
    bank = new_bank(1)
    bank._totals = [Traced(4)]
    # the amount joins the total first (exact integers both), then one addition with the noise
    bank.close_ticks([[Traced(2)]])
    assert kinds == [np.dtype(np.int64)] * 2
    assert seen == [(Traced, Traced)]
    bank._totals = [Traced(4)]
    monkeypatch.setattr(bank, "_totals", _Totals([Traced(6)]))
    with pytest.raises(TypeError, match="int64"):
        original(np.zeros(1), np.zeros(1), 3)  # type: ignore[arg-type]  # floats are refused


class _Totals(list[int]):
    pass


@pytest.mark.parametrize("at", [0, 1, 255, 1024])
def test_restore_anywhere_goes_on_byte_for_byte(at: int) -> None:
    amounts = np.random.default_rng(3).integers(0, 100, (1100, 3)).tolist()
    whole = new_bank()
    expected = whole.close_ticks(amounts)
    first = new_bank()
    assert first.close_ticks(amounts[:at]) == expected[:at]
    second = new_bank()
    second.load(first.snapshot())
    assert [second.close_ticks([tick])[0] for tick in amounts[at : at + 40]] == expected[at : at + 40]
    assert second.t == at + 40


def test_open_amounts_travel_in_the_snapshot() -> None:
    bank = new_bank()
    bank.add(1, 5)
    other = new_bank()
    other.load(bank.snapshot())
    assert other.close_tick() == bank.close_tick()


def test_neighbouring_inputs_under_one_key_differ_by_the_data_alone() -> None:
    amounts = np.random.default_rng(4).integers(0, 9, (200, 3))
    changed = amounts.copy()
    changed[50, 1] += 1
    one, other = new_bank().close_ticks(amounts.tolist()), new_bank().close_ticks(changed.tolist())
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        assert [y - x for x, y in zip(a.values, b.values, strict=True)] == [0, int(t >= 50), 0]
        assert a.standard_error == b.standard_error


def test_standard_error_is_the_deviation_of_the_release() -> None:
    """4,000 keys of zero counts at t = 40: sample deviation within 6 of its own standard errors."""
    keys = 4000
    last = new_bank(keys, mu=0.5).close_ticks([[0] * keys] * 40)[-1]
    measured = float(np.std(np.array(last.values, dtype=float)))
    stated = float(last.standard_error)
    assert abs(measured / stated - 1) < 6 / np.sqrt(2 * keys)
    assert stated == pytest.approx(
        np.sqrt(new_bank(keys, mu=0.5).grid.sigma ** 2 * W32.noise_power(40) + 1 / 12), rel=1e-5
    )


def test_ticks_past_the_paid_horizon_are_refused_before_anything_is_drawn() -> None:
    bank = new_bank(slack_horizon=10)
    bank.close_ticks([[0] * 3] * 10)
    before = bank.snapshot()
    with pytest.raises(UnsupportedMechanism, match="horizon 10"):
        bank.close_tick()
    assert bank.snapshot() == before


def test_snapshots_of_other_streams_and_damaged_ones_are_refused() -> None:
    snapshot = new_bank().snapshot()
    for other in (new_bank(4), new_bank(3, mu=1.5), new_bank(3, slack_horizon=2**20)):
        with pytest.raises(IntegrityError):
            other.load(snapshot)
    for position in range(0, len(snapshot), 7):
        damaged = bytearray(snapshot)
        damaged[position] ^= 1
        with pytest.raises(IntegrityError):
            new_bank().load(bytes(damaged))
    for size in (0, 5, len(snapshot) - 1):
        with pytest.raises(IntegrityError):
            new_bank().load(snapshot[:size])


def test_a_snapshot_goes_on_where_the_sensitivity_ends_in_other_digits() -> None:
    """Another processor's sums of doubles; ten times what was seen between two kinds of them."""
    here = new_bank()
    here.close_ticks([[1, 2, 3]])
    snapshot = here.snapshot()
    sensitivity = here.grid.sensitivity
    for factor, accepted in ((1 + 2e-14, True), (1 - 2e-14, True), (1 + 1e-12, False), (2.0, False)):
        grid = dataclasses.replace(here.grid, sensitivity=sensitivity * factor)
        there = CounterBank(W32, grid, KeyedNoise(KEY, range(3)))
        if accepted:
            there.load(snapshot)
            assert there.close_ticks([[0, 0, 0]]) == new_bank().close_ticks([[1, 2, 3], [0, 0, 0]])[1:]
        else:
            with pytest.raises(IntegrityError, match="other parameters"):
                there.load(snapshot)


def test_secrets_are_redacted_and_not_pickled() -> None:
    bank = new_bank(1)
    bank.add(0, 123456789012)
    counter = RunningCounter(W32, mu=1.0, key=KEY)
    counter.add(123456789012)
    for holder in (bank, counter):
        assert "123456789012" not in repr(holder)
        with pytest.raises(TypeError):
            pickle.dumps(holder)


def test_running_counter_is_a_bank_of_one() -> None:
    counter = RunningCounter(W32, mu=1.0, clip=1, key=KEY)
    bank = CounterBank.for_mu(W32, mu=1.0, source=KeyedNoise(KEY), contribution=Contribution(1, lower=-1))
    for amount in (3, 0, 10**25, -4):
        counter.add(amount)
        bank.add(0, amount)
        mine, theirs = counter.close_tick(), bank.close_tick()
        assert (mine.t, mine.value, mine.standard_error) == (
            theirs.t,
            theirs.values[0],
            theirs.standard_error,
        )
    again = RunningCounter.restore(counter.snapshot(), W32, mu=1.0, clip=1, key=KEY)
    assert again.close_tick() == counter.close_tick()


def test_contributions_are_clipped() -> None:
    one, other = (RunningCounter(W32, mu=1.0, clip=2, key=KEY) for _ in range(2))
    one.contribute(10**9)
    other.add(2)
    assert one.close_tick() == other.close_tick()


@pytest.mark.parametrize("amount", [1.0, float("nan"), "3", None, True])
def test_amounts_are_exact_integers(amount: object) -> None:
    with pytest.raises(InvalidParameter):
        RunningCounter(W32, mu=1.0, key=KEY).add(amount)  # type: ignore[arg-type]  # deliberately wrong


def test_ticks_of_the_wrong_width_are_refused() -> None:
    bad: Sequence[Sequence[int]] = [[1, 2]]
    with pytest.raises(InvalidParameter):
        new_bank(3).close_ticks(bad)


@pytest.mark.parametrize("amount", [1.0, float("nan"), True, np.int64(1), np.float64(2), "3", None, 1j])
def test_ticks_of_inexact_amounts_are_refused_before_a_draw(amount: object) -> None:
    bank = new_bank(2)
    with pytest.raises(InvalidParameter, match="amounts"):
        bank.close_ticks([[0, 1], [0, amount]])  # type: ignore[list-item]  # deliberately wrong
    assert bank.t == 0
    assert bank.snapshot() == new_bank(2).snapshot()


@pytest.mark.parametrize("keys", [1, 3])
def test_the_length_of_a_snapshot_tells_nothing_of_sums_or_noise(keys: int) -> None:
    lengths = set()
    for stream_id, total in itertools.product((bytes(16), b"\1" * 16), (0, 127, 128, -129, 2**31, 10**30)):
        source = KeyedNoise(NoiseKey(bytes(32), stream="s", stream_id=stream_id), range(keys))
        bank = CounterBank.for_mu(W32, mu=1.0, source=source)
        bank.close_ticks([[total] * keys] * 5)
        bank.add(0, total)
        lengths.add(len(bank.snapshot()))
    assert len(lengths) == 1


@pytest.mark.parametrize("position", [-1, 2, 0.0, True, None, float("nan")])
def test_positions_are_integers_of_the_bank(position: object) -> None:
    with pytest.raises(InvalidParameter, match="position"):
        new_bank(2).add(position, 1)  # type: ignore[arg-type]  # deliberately wrong


@pytest.mark.parametrize("field", ["mu", "clip"])
@pytest.mark.parametrize("value", [0, -0.0, 5e-324, float("inf"), float("nan"), -1])
def test_unusable_parameters_are_refused_at_start(field: str, value: float) -> None:
    parameters: dict[str, object] = {"mu": 1.0, "clip": 1, "key": KEY, field: value}
    with pytest.raises(InvalidParameter):
        RunningCounter(W32, **parameters)  # type: ignore[arg-type]  # deliberately wrong


def test_values_of_any_order_and_size_give_one_exact_sum() -> None:
    orders = ([10**16, 1, -(10**16)], [1, 10**16, -(10**16)], [-(10**16), 10**16, 1])
    finals = set()
    for order in orders:
        counter = RunningCounter(W32, mu=1.0, clip=1, key=KEY)
        for amount in order:
            counter.add(amount)
        finals.add(counter.close_tick())
    assert len(finals) == 1
