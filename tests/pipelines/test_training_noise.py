"""The noise of training steps, the integers it meets, and the rows that correlate it. No torch."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

from evertally.accountants import (
    BLT,
    BallsInBins,
    BandedInverseSquareRoot,
    BandedSquareRoot,
    BandMF,
    Identity,
)
from evertally.counters.gaussian import GRID_BITS
from evertally.counters.keys import NoiseKey
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.pipelines.training.noise import StepNoise
from evertally.pipelines.training.noise_rows import make_rows, row_rounding, slack_buffer
from evertally.pipelines.training.quantise import StepGrid, clip_integers

MASTER = bytes(range(32))
RUN = bytes(range(16))
UNIT = 2.0**GRID_BITS


def noise(lease: str = "a", attempt: int = 0, steps: int = 100, threads: int = 1) -> StepNoise:
    key = NoiseKey(MASTER, stream=f"training:{lease}", stream_id=RUN, incarnation=attempt)
    return StepNoise(key, steps, threads=threads)


def grid(sigma: float = 1.0, elements: int = 1000, **more: float) -> StepGrid:
    return StepGrid.fit(
        noise_multiplier=sigma, sensitivity=1.0 + 1e-7, elements=elements, units_max=1000, **more
    )


def test_a_draw_depends_on_its_place_alone() -> None:
    count = 200_000  # several blocks, so that threads share the work
    whole = noise(threads=3).draw(7, 2, count)
    assert np.array_equal(whole, noise(threads=1).draw(7, 2, count))
    pieces = [noise().draw(7, 2, 50_000, first=first) for first in (150_000, 0, 100_000, 50_000)]
    assert np.array_equal(whole, np.concatenate([pieces[1], pieces[3], pieces[2], pieces[0]]))
    assert abs(np.std(whole) / UNIT - 1.0) < 5 / math.sqrt(2 * count)
    assert abs(np.mean(whole) / UNIT) < 5 / math.sqrt(count)


def test_noise_of_tensors_steps_attempts_and_leases_is_uncorrelated() -> None:
    """One key for every parameter's noise correlated tensors of one shape elsewhere (jax PR#3646)."""
    count = 40_000
    draws = {
        "first": noise().draw(0, 0, count),
        "tensor": noise().draw(0, 1, count),
        "step": noise().draw(1, 0, count),
        "attempt": noise(attempt=1).draw(0, 0, count),
        "lease": noise(lease="b").draw(0, 0, count),
        "shifted": noise().draw(0, 0, count, first=1),
    }
    for one, other in itertools.combinations(draws, 2):
        correlation = float(np.corrcoef(draws[one], draws[other])[0, 1])
        assert abs(correlation) < 5 / math.sqrt(count), (one, other)


@pytest.mark.parametrize("step", [100, 101, -1, 2**70, 1.0, True])
def test_no_noise_past_the_last_row(step: int) -> None:
    """Noise read past its last row was all zeros, or another run's, elsewhere (jax_privacy PR#338)."""
    with pytest.raises(InvalidParameter, match="step"):
        noise(steps=100).draw(step, 0, 4)
    noise(steps=100).draw(99, 0, 4)


def test_secrets_do_not_leave() -> None:
    rows = make_rows(BandedSquareRoot(2), BallsInBins(4, 2), (3,))
    for secret in (noise(), rows):
        with pytest.raises(TypeError):
            pickle.dumps(secret)
    rows.encode([np.array([77_771, 77_772, 77_773])])
    assert "7777" not in repr(rows)


def test_the_grid_covers_the_charged_noise_with_every_rounding() -> None:
    for sigma, elements, rows in itertools.product((0.3, 1.0, 20.0), (1, 10**4, 10**7), (0.0, 9.0)):
        fitted = grid(sigma, elements, row_rounding=rows)
        spent = fitted.q * (1.0 + 1e-7) + math.sqrt(elements) * (4.0 + rows)
        assert spent <= UNIT / sigma * (1 + 1e-15)
        assert fitted.noise_sd >= sigma
        if elements <= 10**4:
            assert fitted.noise_sd == pytest.approx(sigma, rel=5e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("noise_multiplier", "sensitivity")
        for value in (0, -1.0, math.nan, math.inf, 5e-324, 1e300)
    ]
    + [("elements", 0), ("units_max", 0), ("elements", True)],
)
def test_no_grid_from_unusable_numbers(field: str, value: float) -> None:
    good = {"noise_multiplier": 1.0, "sensitivity": 1.0, "elements": 10, "units_max": 10}
    with pytest.raises(InvalidParameter, match=field):
        StepGrid.fit(**{**good, field: value})  # type: ignore[arg-type]  # one of them is unusable


def test_a_grid_that_rounding_would_eat_is_refused() -> None:
    with pytest.raises(UnsupportedMechanism, match="rounding"):
        grid(sigma=1000.0, elements=10**9)


def test_numbers_that_are_not_finite_never_raise_and_never_pass() -> None:
    fitted = grid(elements=4)
    (kept,) = fitted.quantise([np.array([np.nan, np.inf, -np.inf, 1e300])])
    assert kept.dtype == np.int64
    assert math.sqrt(sum(int(x) ** 2 for x in kept)) <= fitted.reach
    assert kept[0] == 0


def test_one_contribution_moves_the_integers_by_no_more_than_the_record_norm() -> None:
    random = np.random.default_rng(4)
    fitted = grid(sigma=0.5, elements=60)
    for _ in range(200):
        base = [random.normal(size=40) * 10.0 ** random.integers(-3, 2), random.normal(size=20)]
        move = random.normal(size=60)
        move *= (1.0 + 1e-7) / np.linalg.norm(move)
        moved = [base[0] + move[:40], base[1] + move[40:]]
        one, other = fitted.quantise(base), fitted.quantise(moved)
        squared = sum(
            int(a - b) ** 2 for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
        )
        assert squared <= fitted.record_norm**2
    assert fitted.record_norm <= UNIT / 0.5


def test_integers_are_clipped_exactly() -> None:
    assert [t.tolist() for t in clip_integers([np.array([3]), np.array([4])], 5)] == [[3], [4]]
    assert [t.tolist() for t in clip_integers([np.array([30]), np.array([-40])], 5)] == [[3], [-4]]
    random = np.random.default_rng(1)
    for _ in range(200):
        x = random.integers(-(2**45), 2**45, size=5)
        (kept,) = clip_integers([x], 2**44)
        assert sum(int(v) ** 2 for v in kept) <= 2**88
        assert (np.sign(kept) * np.sign(x) >= 0).all()


SCHEME = BallsInBins(batches=6, epochs=3)
BUFFERED = BLT((0.4, 0.1), (0.6, 0.95))


@pytest.mark.parametrize(
    "strategy",
    [Identity(), BandedSquareRoot(1), BandedSquareRoot(4), BandMF(3).fixed(SCHEME), BUFFERED],
    ids=["identity", "one", "bsr", "bandmf", "blt"],
)
def test_published_rows_are_c_x_plus_z_and_decode_to_c_inverse(strategy: object) -> None:
    rows, sizes = make_rows(strategy, SCHEME, (5, 3)), (5, 3)  # type: ignore[arg-type]  # a strategy
    random = np.random.default_rng(2)
    x = random.integers(-(2**32), 2**32, size=(SCHEME.rows, 8))
    z = random.integers(-(2**31), 2**31, size=(SCHEME.rows, 8))
    column = strategy.matrix_first_column(SCHEME)  # type: ignore[attr-defined]  # every strategy has it
    C = np.array([[column[i - j] if i >= j else 0.0 for j in range(SCHEME.rows)] for i in range(SCHEME.rows)])
    published, gradients = [], []
    for t in range(SCHEME.rows):
        row = [m + e for m, e in zip(rows.encode(np.split(x[t], [5])), np.split(z[t], [5]), strict=True)]
        published.append(np.concatenate(row))
        decoded = rows.decode([part.astype(np.float64) for part in row])
        assert tuple(part.size for part in decoded) == sizes
        gradients.append(np.concatenate(decoded))
    assert np.abs(np.array(published) - (C @ x + z)).max() <= 1.0
    assert np.allclose(np.array(gradients), np.linalg.solve(C, np.array(published, np.float64)), atol=1e-3)


@pytest.mark.parametrize("strategy", [BandedSquareRoot(4), BUFFERED], ids=["bsr", "blt"])
def test_rows_resume_to_the_same_bits(strategy: object) -> None:
    def run(rows: object, steps: range, state: dict[str, np.ndarray] | None = None) -> list[list[int]]:
        if state is not None:
            rows.load(state)  # type: ignore[attr-defined]  # Rows
        found = []
        for t in steps:
            sums = np.random.default_rng(t).integers(-(2**30), 2**30, size=6)
            row = rows.encode([sums[:2], sums[2:]])  # type: ignore[attr-defined]  # Rows
            decoded = rows.decode([part / 3.0 for part in row])  # type: ignore[attr-defined]  # Rows
            found.append([*np.concatenate(row).tolist(), *np.concatenate(decoded).tolist()])
        return found

    def fresh() -> object:
        return make_rows(strategy, SCHEME, (2, 4))  # type: ignore[arg-type]  # a strategy

    whole = run(fresh(), range(12))
    for stop in (1, 2, 5):
        first = fresh()
        head = run(first, range(stop))
        tail = run(fresh(), range(stop, 12), first.state())  # type: ignore[attr-defined]  # Rows
        assert head + tail == whole
    with pytest.raises(IntegrityError):
        make_rows(strategy, SCHEME, (2, 3)).load(first.state())  # type: ignore[arg-type, attr-defined]  # as above


def test_rounding_of_rows_is_where_the_record_is() -> None:
    """Banded: two worlds differ in no row that the record's own band does not reach."""
    strategy = BandedSquareRoot(4)
    one, other = (make_rows(strategy, SCHEME, (50,)) for _ in range(2))
    random = np.random.default_rng(3)
    for t in range(SCHEME.rows):
        x = random.integers(-(2**40), 2**40, size=50)
        moved = x + (random.integers(-(2**20), 2**20, size=50) if t == 5 else 0)
        (a,), (b,) = one.encode([x]), other.encode([moved])
        assert np.array_equal(a, b) == (t not in range(5, 9))


def test_row_rounding_is_charged() -> None:
    assert row_rounding(Identity(), SCHEME, 2**40) == 0.0
    least = strategy_least = 0.3125  # fourth tap of the square root
    assert row_rounding(BandedSquareRoot(4), SCHEME, 2**30) == pytest.approx(1 / least, rel=1e-3)
    assert row_rounding(BandedSquareRoot(4), SCHEME, 2**52) > 2 / strategy_least
    charged = slack_buffer(BUFFERED, SCHEME, 10**6, 2.0**30, 2**40)
    assert isinstance(charged, BLT)
    plain, paid = BUFFERED.matrix_first_column(SCHEME), charged.matrix_first_column(SCHEME)
    per_row = math.sqrt(10**6) / 2**30
    assert (paid[1:] - plain[1:] >= per_row * (1 - 1e-9)).all()
    assert (paid[1:] - plain[1:] <= per_row * 1.1).all()


@pytest.mark.parametrize(
    "strategy",
    [BandedInverseSquareRoot(3), BandedSquareRoot(3, normalize_columns=True), BLT((-0.1,), (0.5,))],
    ids=["inverse", "normalised", "negative"],
)
def test_strategies_without_a_rounding_bound_are_refused(strategy: object) -> None:
    with pytest.raises(UnsupportedMechanism, match="strategy"):
        make_rows(strategy, SCHEME, (3,))  # type: ignore[arg-type]  # a strategy
