"""What a lane computes, without Flink: ticks, closings, unit bounds, sealed state."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.errors import IntegrityError
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.flink.lanes import LaneHead, OpenSums, assign_ticks, cut_pieces
from evertally.pipelines.flink.messages import ARRIVAL, NO_ROWS, Letter, Message, lane_of
from evertally.pipelines.flink.unit_lanes import OpenEvents, UnitBuckets
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.sealing import Sealer

KEY = os.urandom(32)


class Value:
    """ValueState in memory."""

    def __init__(self) -> None:
        self.stored: bytes | None = None

    def value(self) -> bytes | None:
        return self.stored

    def update(self, value: bytes) -> None:
        self.stored = value


class Many:
    """ListState in memory."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def get(self) -> list[bytes]:
        return list(self.stored)

    def add(self, value: bytes) -> None:
        self.stored.append(value)

    def update(self, values: list[bytes]) -> None:
        self.stored = list(values)


class Table:
    """MapState in memory."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}

    def get(self, key: int) -> bytes | None:
        return self.stored.get(key)

    def put(self, key: int, value: bytes) -> None:
        self.stored[key] = value


def sealer() -> Sealer:
    return Sealer(KEY, "flink-state/4/s", 1)


def rows(*columns: list[int]) -> np.ndarray:
    return np.array(columns, np.int64)


def test_arrival_goes_to_the_clock_and_event_time_to_its_tick_while_open() -> None:
    rule = TickRule(1000, 100)
    head = LaneHead(4, 0)
    assigned = assign_ticks(rows([ARRIVAL, 2, 9], [0, 0, 0], [1, 1, 1]), rule, head, now_ms=1450)
    assert assigned[0].tolist() == [5, 4, 9]
    behind = assign_ticks(rows([ARRIVAL], [0], [1]), rule, head, now_ms=1000)
    assert behind[0].tolist() == [4], "a closed tick takes nothing, whatever the clock says"


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(-(2**40), 2**40)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_each_contribution_is_in_one_closing(events: list[tuple[int, int, int]]) -> None:
    state = Value()
    expected: dict[tuple[int, int], int] = defaultdict(int)
    found: dict[tuple[int, int], int] = defaultdict(int)
    for first in range(0, len(events), 7):
        part = events[first : first + 7]
        OpenSums(state, sealer(), 3).add(
            0, np.array(part, np.int64).T.reshape(3, -1)
        )  # anew, as after a restore
        for t, key, value in part:
            expected[t, key] += value
    for through in (2, 2, 6):
        for t, sums in OpenSums(state, sealer(), 3).close(0, through).items():
            assert t <= through
            for key, amount in sums.items():
                found[t, key] += amount
    assert found == {place: amount for place, amount in expected.items() if amount}
    assert OpenSums(state, sealer(), 3).close(0, 100) == {}


def test_sums_do_not_wrap_around() -> None:
    state = Value()
    for _ in range(6):
        OpenSums(state, sealer(), 2).add(0, rows([1, 1], [0, 1], [2**61, -(2**61)]))
    assert OpenSums(state, sealer(), 2).close(0, 1) == {1: {0: 6 * 2**61, 1: -6 * 2**61}}


def test_pieces_are_what_the_releaser_takes() -> None:
    """Two lanes and two shards into the releaser's own collector: every tick closes, empty ones too."""
    positions = [[0, 2], [1]]
    heads = [LaneHead(1, 0), LaneHead(1, 0)]
    log: list[list] = [[], []]
    for lane, through, totals in (
        (0, 3, {1: {0: 5, 1: 1}, 3: {2: 7}}),
        (1, 2, {2: {0: 1}}),
        (1, 3, {}),
        (0, 4, {}),
        (1, 6, {4: {1: 2}}),
    ):
        pieces, heads[lane] = cut_pieces("00", 1, lane, heads[lane], through, totals, positions)
        for shard, piece in pieces:
            log[shard].append(piece)
    for shard, wanted in ((0, [{0: 5}, {0: 1}, {2: 7}, {}]), (1, [{1: 1}, {}, {}, {1: 2}])):
        collector = TickCollector(2, LogPosition(0, 0, 0, ()))
        for offset, piece in enumerate(log[shard]):
            collector.add(offset, piece)
        closed = collector.close(100)
        assert [add_sums(map(decode_sums, bodies)) for bodies in closed] == wanted
    with pytest.raises(IntegrityError, match="repeats or lacks"):
        collector.add(99, log[1][0])  # a lane that was restored from too old a state


def test_a_lanes_state_does_not_grow_with_time() -> None:
    early, late = Value(), Value()
    for state, t in ((early, 1), (late, 10**6)):
        OpenSums(state, sealer(), 100).add(0, rows([t] * 100, list(range(100)), [3] * 100))
        state.update(sealer().seal(LaneHead(t, t).encode(), 0, 0) + (state.value() or b""))
    assert len(early.stored or b"") == len(late.stored or b"") < 100 * 1024


def test_a_state_opens_only_where_it_belongs() -> None:
    state = Value()
    OpenSums(state, sealer(), 2).add(0, rows([1], [0], [1]))
    with pytest.raises(IntegrityError):
        OpenSums(state, sealer(), 2).close(1, 1)
    with pytest.raises(IntegrityError):
        OpenSums(state, Sealer(KEY, "flink-state/8/s", 1), 2).close(0, 1)
    with pytest.raises(IntegrityError):
        LaneHead.decode(b"\x02" + LaneHead(1, 1).encode()[1:])


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3), st.integers(0, 2)), max_size=80),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 2),
)
@settings(max_examples=50, deadline=None)
def test_units_stay_within_their_bound(events: list[tuple[int, int, int]], k: int, b: int, c: int) -> None:
    lanes = 4
    many, table = Many(), Table()
    counted: dict[int, dict[int, int]] = defaultdict(dict)
    events.sort(key=lambda event: event[0])
    for t, group in itertools.groupby(events, key=lambda event: event[0]):
        batch = list(group)
        # one unit a key, so that sums say which unit was counted
        data = rows(
            [t] * len(batch), [u * lanes for _, u, _ in batch], [u for _, u, _ in batch], [1] * len(batch)
        )
        units = UnitBuckets(table, sealer(), lanes)
        lane = OpenEvents(many, units, sealer(), UnitBound(k, b, c))
        lane.add(0, data)
        for tick, sums in OpenEvents(many, units, sealer(), UnitBound(k, b, c)).close(0, t).items():
            for unit, amount in sums.items():
                counted[unit][tick] = amount
    for unit, ticks in counted.items():
        assert len(ticks) <= k
        assert all(amount <= c for amount in ticks.values())
        assert all(late - early >= b for early, late in itertools.pairwise(sorted(ticks)))
        first = min(t for t, u, _ in events if u == unit)
        assert min(ticks) == first, "the first tick of a unit always counts"


def test_later_events_stay_open() -> None:
    many, table = Many(), Table()
    lane = OpenEvents(many, UnitBuckets(table, sealer(), 1), sealer(), UnitBound(2, 1, 1))
    lane.add(0, rows([3, 1], [5, 5], [0, 0], [1, 1]))
    assert lane.close(0, 2) == {1: {0: 1}}
    assert lane.close(0, 3) == {3: {0: 1}}
    assert many.stored == []


def test_messages_round_trip() -> None:
    message = Message(7, [Letter(2, b"{}"), Letter(0, b"[]")], rows([1], [2], [3], [2**50]))
    data = message.encode()
    back = Message.decode(data)
    assert lane_of(data) == back.lane == 7
    assert list(back.letters) == list(message.letters)
    assert back.rows.tolist() == [[1], [2], [3], [2**50]]
    empty = Message.decode(Message(1, [], NO_ROWS).encode())
    assert empty.rows.shape[1] == 0
