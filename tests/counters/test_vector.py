"""Vectors: the l2 clip is exact and the sensitivity holds for every direction."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.counters import NoiseKey, Rational
from evertally.counters.vector import VectorCounter, clip_l2
from evertally.errors import InvalidParameter

W32 = Rational.preset("W32")
KEY = NoiseKey(bytes(range(32)), stream="vector", stream_id=bytes(16))


@given(st.lists(st.integers(-(10**40), 10**40), min_size=1, max_size=8), st.integers(1, 10**20))
def test_the_clip_is_exact(vector: list[int], clip: int) -> None:
    clipped = clip_l2(vector, clip)
    assert sum(x * x for x in clipped) <= clip * clip
    assert all(abs(c) <= abs(x) and c * x >= 0 for c, x in zip(clipped, vector, strict=True))
    if sum(x * x for x in vector) <= clip * clip:
        assert list(clipped) == vector


@pytest.mark.parametrize("vector", [[1.0], [True], ["1"], [math.nan]])
def test_coordinates_are_exact_integers(vector: list[int]) -> None:
    with pytest.raises(InvalidParameter):
        clip_l2(vector, 3)


def test_neighbours_differ_by_the_clipped_vector() -> None:
    one, other = (VectorCounter(W32, mu=1.0, clip=5, dimension=3, key=KEY) for _ in range(2))
    one.contribute([300, 400, 0])
    a, b = one.close_tick(), other.close_tick()
    assert [x - y for x, y in zip(a.values, b.values, strict=True)] == [3, 4, 0]


def test_vector_sensitivity_is_the_scalar_one_and_slack_pays_for_every_coordinate() -> None:
    scalar = VectorCounter(W32, mu=1.0, clip=5, dimension=1, key=KEY).grid
    wide = VectorCounter(W32, mu=1.0, clip=5, dimension=64, key=KEY).grid
    assert wide.sensitivity == scalar.sensitivity
    assert wide.slack == pytest.approx(8 * scalar.slack)


def test_snapshots_go_on() -> None:
    counter = VectorCounter(W32, mu=1.0, clip=5, dimension=2, key=KEY)
    counter.contribute([1, 2])
    counter.close_tick()
    again = VectorCounter(W32, mu=1.0, clip=5, dimension=2, key=KEY)
    again.load(counter.snapshot())
    assert again.close_tick() == counter.close_tick()


def test_the_wrong_dimension_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        VectorCounter(W32, mu=1.0, clip=5, dimension=2, key=KEY).contribute([1])
    for dimension in (0, -1, 1.5, 2**21):
        with pytest.raises(InvalidParameter):
            VectorCounter(W32, mu=1.0, clip=5, dimension=dimension, key=KEY)  # type: ignore[arg-type]  # wrong
