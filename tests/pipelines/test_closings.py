"""Exact sums: never wrapped, never printed, never pickled."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertally.pipelines.closings import Closing, ClosingBlock, TickSums

CANARY = 918_273_645_546


def test_sums_equal_unbounded_integers() -> None:
    rng = np.random.default_rng(5)
    sums, exact = TickSums(3, 2), [0] * 6
    for _ in range(40):
        cells = rng.integers(0, 6, 50)
        values = rng.integers(-(2**62), 2**62, 50)
        sums.add(cells, values)
        for cell, value in zip(cells.tolist(), values.tolist(), strict=True):
            exact[cell] += value
    rows = sums.rows(0, 3)
    assert rows.dtype == object
    assert [value for row in rows.tolist() for value in row] == exact
    assert max(map(abs, exact)) > 2**63


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**62), 2**62)), max_size=60))
def test_batches_change_nothing(events: list[tuple[int, int]]) -> None:
    at_once, one_by_one = TickSums(2, 2), TickSums(2, 2)
    at_once.add(np.array([c for c, _ in events], np.int64), np.array([v for _, v in events], np.int64))
    for cell, value in events:
        one_by_one.add(np.array([cell]), np.array([value]))
    assert at_once.rows(0, 2).tolist() == one_by_one.rows(0, 2).tolist()


def test_counting_is_adding_one() -> None:
    counted, added = TickSums(2, 2), TickSums(2, 2)
    cells = np.array([0, 3, 3, 1, 3])
    counted.count(cells)
    added.add(cells, np.ones(5, np.int64))
    assert counted.rows(0, 2).tolist() == added.rows(0, 2).tolist() == [[1, 1], [0, 3]]


def test_exact_sums_are_neither_printed_nor_pickled() -> None:
    sums = TickSums(1, 1)
    sums.add(np.array([0]), np.array([CANARY]))
    block = ClosingBlock("s", ("a",), 1, sums.rows(0, 1), str(CANARY).encode(), (60_000,))
    closing = next(iter(block))
    assert closing == Closing("s", "a", 1, CANARY, str(CANARY).encode())
    for sensitive in (sums, block, closing):
        assert str(CANARY) not in f"{sensitive!r} {sensitive}"
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(sensitive)
        with pytest.raises(TypeError):
            copy.deepcopy(sensitive)


def test_a_block_gives_its_closings_in_order() -> None:
    block = ClosingBlock("s", ("a", "b"), 7, np.array([[1, 2], [3, 4]]), b"p", (70, 80))
    assert [(c.t, c.key, c.sum) for c in block] == [(7, "a", 1), (7, "b", 2), (8, "a", 3), (8, "b", 4)]
