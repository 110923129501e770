"""Tallies of a partition, sealed pieces, unit bounds, the clock guard: what needs no broker."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.events import EventColumns
from evertally.pipelines.kafka.aggregation import OpenTick, PartitionTally, ShardSums, TickRule
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.kafka.sealed_records import Piece, Place, StreamSealer
from evertally.pipelines.kafka.stage import Stall
from evertally.pipelines.kafka.sums import add_sums, decode_sums, encode_sums
from evertally.pipelines.kafka.unit_bound import Contributed, bound_tick
from evertally.pipelines.kafka.unit_events import UnitEvents, decode_events, unit_numbers
from evertally.pipelines.kafka.unit_state import ChangelogSealer, UnitStore

RULE = TickRule(0, 1000, lateness_ms=500, skew_ms=10_000)


def columns(times: list[int], keys: list[int], values: list[int] | None = None) -> EventColumns:
    return EventColumns(
        np.array(times, np.int64),
        np.array(keys, np.int64),
        None if values is None else np.array(values, np.int64),
        None,
    )


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_every_event_in_exactly_one_open_tick(seed: int) -> None:
    chance = random.Random(seed)
    shard_of = [0, 1, 0, 1]
    tally = PartitionTally(7, 100, 1, RULE, ShardSums(shard_of, 2))
    position, counted, sent = 100, Counter[int](), Counter[int]()
    ended = [0, 0]
    stops = [100, 100]
    closed = 0
    for _ in range(20):
        for _ in range(chance.randrange(3)):
            size = chance.randrange(0, 5)
            keys = [chance.randrange(4) for _ in range(size)]
            times = [chance.randrange(0, (closed + 3) * 1000) for _ in range(size)]
            position += size + chance.randrange(2)
            tally.add(columns(times, keys), position)
            sent.update(keys)
        closed += chance.choice([0, 0, 1, 3])
        if not tally.dirty() and closed < tally.open_tick:
            continue
        for shard, piece in tally.cut("aa", 1, closed):
            assert piece.start == stops[shard]
            stops[shard] = piece.stop
            assert piece.place.t > ended[shard]
            sums = decode_sums(piece.body)
            assert all(shard_of[key] == shard for key in sums)
            counted.update(sums)
            if piece.place.end:
                ended[shard] = piece.place.t
        tally.committed(closed)
        assert stops == [position, position]
        assert ended == [closed, closed]
    for _, piece in tally.cut("aa", 1, closed):
        counted.update(decode_sums(piece.body))
    assert counted == sent


@pytest.mark.slow
def test_a_cut_that_fails_can_be_made_again() -> None:
    tally = PartitionTally(0, 0, 1, RULE, ShardSums([0], 1))
    tally.add(columns([10], [0]), 1)
    first = [(shard, piece.place, piece.body) for shard, piece in tally.cut("aa", 1, 1)]
    assert first == [(shard, piece.place, piece.body) for shard, piece in tally.cut("aa", 1, 1)]


@pytest.mark.slow
def test_sums_never_wrap() -> None:
    big = 2**40
    tally = PartitionTally(0, 0, 1, RULE, ShardSums([0], 1))
    for _ in range(5):
        tally.add(columns([10] * 4000, [0] * 4000, [big] * 4000), 1)
    ((_, piece),) = tally.cut("aa", 1, 1)
    assert decode_sums(piece.body) == {0: 5 * 4000 * big}
    assert add_sums([{0: 2**100}, {0: -1}]) == {0: 2**100 - 1}


@pytest.mark.slow
def test_the_text_of_an_offset() -> None:
    text = OpenTick("ab", 2, 9).encode()
    assert OpenTick.decode(text).within("ab", 2) == 9
    assert OpenTick.decode(text).within("cd", 3) == 1
    with pytest.raises(IntegrityError, match="another life"):
        OpenTick.decode(text).within("cd", 2)
    with pytest.raises(IntegrityError, match="another program"):
        OpenTick.decode("")


@pytest.mark.slow
def test_pieces_open_only_where_they_were_written() -> None:
    sealer = StreamSealer(bytes(32), "topic", bytes(16), 1)
    piece = Piece(Place(sealer.life, 1, 3, 9, True), 100, 200, encode_sums({0: 123_456_789_012}, [0]))
    key, value = sealer.seal(piece, 0)
    opened = sealer.open(key, value, 0)
    assert opened is not None
    assert (opened.place, opened.start, opened.stop, opened.body) == (piece.place, 100, 200, piece.body)
    for other, moved_key, partition in (
        (sealer, key, 1),
        (StreamSealer(bytes(32), "topic2", bytes(16), 1), key, 0),
        (StreamSealer(b"x" * 32, "topic", bytes(16), 1), key, 0),
        (sealer, key.replace(b'"t":9', b'"t":8'), 0),
    ):
        with pytest.raises(IntegrityError, match="does not open"):
            other.open(moved_key, value, partition)
    with pytest.raises(IntegrityError, match="does not open"):
        sealer.open(key, value[:-1] + bytes([value[-1] ^ 1]), 0)
    with pytest.raises(IntegrityError, match="another form"):
        sealer.open(b"{}", value, 0)
    assert StreamSealer(bytes(32), "topic", b"y" * 16, 1).open(key, value, 0) is None
    assert "123456789012" not in repr(opened)


@pytest.mark.slow
def test_the_length_of_a_piece_says_nothing() -> None:
    sealer = StreamSealer(bytes(32), "topic", bytes(16), 1)
    sizes = set()
    for sums in ({}, {0: 1}, {0: 10**12, 1: -(2**100)}, dict.fromkeys(range(300), 7)):
        piece = Piece(Place(sealer.life, 1, 0, 1, True), 0, 1, encode_sums(sums, range(300)))
        sizes.add(len(sealer.seal(piece, 0)[1]))
    assert len(sizes) == 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_bounds_hold_for_any_input(seed: int, k: int, b: int, c: int) -> None:
    chance = np.random.default_rng(seed)
    bound = UnitBound(k, b, c)
    state: dict[int, Contributed] = {}
    counted: dict[int, Counter[int]] = defaultdict(Counter)
    for t in range(1, 12):
        rows = chance.integers(0, 4, (3, int(chance.integers(0, 12))))
        kept, after = bound_tick(rows, t, state, bound)
        again, _ = bound_tick(chance.permutation(rows, axis=1), t, state, bound)
        assert np.array_equal(kept, again)
        state |= after
        for unit in kept[0].tolist():
            counted[unit][t] += 1
    for ticks in counted.values():
        assert len(ticks) <= k
        assert max(ticks.values()) <= c
        assert all(late - early >= b for early, late in zip(sorted(ticks), sorted(ticks)[1:], strict=False))


@pytest.mark.slow
def test_bounding_counts_what_it_may() -> None:
    rows = np.array([[1, 1, 1, 2], [0, 0, 1, 0], [5, 6, 7, 8]])
    kept, after = bound_tick(rows, 9, {2: Contributed(8, 1)}, UnitBound(2, 2, 2))
    assert kept.tolist() == [[1, 1], [0, 0], [5, 6]]
    assert after == {1: Contributed(9, 1)}


@pytest.mark.slow
def test_events_travel_by_unit() -> None:
    number = unit_numbers(b"k" * 32)
    assert number("ann") != number("bob")
    assert 0 <= number("ann") < 2**62
    events = UnitEvents(3)
    units = np.array([number(name) for name in ("ann", "bob", "cid", "ann")])
    events.add(4, EventColumns(units, np.arange(4), np.array([1, -2, 3, 4]), units))
    bodies = [events.take(4, destination) for destination in range(3)]
    assert all(len(found) == 1 for found in bodies)
    seen = [decode_events(found[0]) for found in bodies]
    assert sum(rows.shape[1] for rows in seen) == 4
    assert all((rows[0] % 3 == destination).all() for destination, rows in enumerate(seen))
    with pytest.raises(IntegrityError):
        decode_events(events.take(4, 0)[0][:-1])


@pytest.mark.slow
def test_the_folder_of_units_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    UnitStore(tmp_path / "units", "aa" * 8, 1, 0).close()
    assert (tmp_path / "units").stat().st_mode & 0o777 == 0o700
    with pytest.raises(InvalidParameter, match=r"state\.folder"):
        UnitStore(tmp_path / "missing" / "units", "aa" * 8, 1, 0)


@pytest.mark.slow
def test_unit_state_survives_and_is_sealed(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, "aa" * 8, 1, 0)
    store.apply({5: Contributed(3, 1)}, 17)
    store.close()
    store = UnitStore(tmp_path, "aa" * 8, 1, 0)
    assert store.get([5, 6]) == {5: Contributed(3, 1)}
    assert store.applied() == 17
    store.close()
    sealer = ChangelogSealer(b"k" * 32, "aa" * 8, 1, 0)
    key, value = sealer.seal(5, Contributed(3, 1))
    assert sealer.open(key, value) == (5, Contributed(3, 1))
    assert ChangelogSealer(b"k" * 32, "aa" * 8, 2, 0).open(key, value) is None
    with pytest.raises(IntegrityError):
        sealer.open(key, None)
    with pytest.raises(IntegrityError):
        sealer.open(key, value[:-1] + bytes([value[-1] ^ 1]))


@pytest.mark.slow
def test_an_owner_that_wakes_up_takes_no_units_state_back(tmp_path: Path) -> None:
    """It was stopped between its commit to the broker and the file, which its successor shares."""
    stopped = UnitStore(tmp_path, "aa" * 8, 1, 0)
    stopped.apply({5: Contributed(3, 1)}, 10)
    successor = UnitStore(tmp_path, "aa" * 8, 1, 0)
    successor.apply({5: Contributed(4, 2)}, 13)  # read again from the topic, up to its end
    successor.apply({5: Contributed(9, 3)}, 20)
    with pytest.raises(ServiceUnavailable, match="another worker"):
        stopped.apply({5: Contributed(4, 2)}, 12)
    stopped.apply({}, 12)
    assert successor.get([5]) == {5: Contributed(9, 3)}
    assert successor.applied() == 20
    stopped.close()
    successor.close()


class FakeClock:
    def __init__(self) -> None:
        self.step_ms = 0

    def now_ms(self) -> int:
        return 1000

    def wall_step_ms(self) -> int:
        return self.step_ms


@pytest.mark.slow
@pytest.mark.parametrize(("tick_ms", "limit"), [(1000, 60_000), (60_000, 180_000)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_step_stops_closing_until_confirmed(tick_ms: int, limit: int, sign: int) -> None:
    clocks: list[FakeClock] = []

    def make() -> FakeClock:
        clocks.append(FakeClock())
        return clocks[-1]

    guard = ClockGuard(tick_ms, make)
    clocks[-1].step_ms = sign * limit
    assert guard.trusted()
    clocks[-1].step_ms = sign * (limit + 1)
    assert not guard.trusted()
    clocks[-1].step_ms = 0  # set back: it still needs someone to look
    assert not guard.trusted()
    guard.confirm()
    assert guard.trusted()


@pytest.mark.slow
def test_a_stall_is_noticed() -> None:
    from evertally.errors import ServiceUnavailable

    now = [0.0]
    stall = Stall("aggregate", 10.0, lambda: now[0])
    now[0] = 9.0
    stall.check()
    stall.moved()
    now[0] = 18.0
    stall.check()
    now[0] = 19.5
    with pytest.raises(ServiceUnavailable, match="stalled"):
        stall.check()


@pytest.mark.slow
def test_ticks_close_by_the_clock_alone() -> None:
    assert RULE.closed_through(0) == 0
    assert RULE.closed_through(1500) == 1
    assert RULE.next_close_ms(1499) == 1500
    assert TickRule(10_000, 1000).closed_through(0) == 0
    assert RULE.ticks(np.array([0, 999, 1000])).tolist() == [1, 1, 2]
