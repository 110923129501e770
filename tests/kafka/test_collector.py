"""The tick collector: pure, so every order and every resume can be tried."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.sealed_records import Piece, Place

START = LogPosition(0, 0, 0, ())


def make_log(seed: int, sources: int, ticks: int) -> list[Piece]:
    """A log in which each source sends some pieces a tick and then ends it, in random interleaving."""
    chance = random.Random(seed)
    queues: list[list[Piece]] = []
    for source in range(sources):
        at, pieces, t = chance.randrange(100), [], 1
        while t <= ticks:
            for _ in range(chance.randrange(3)):
                size = chance.randrange(1, 5)
                place = Place("aa", 1, source, t + chance.randrange(2), False)
                pieces.append(Piece(place, at, at + size, f"{source}:{at}".encode()))
                at += size
            t += chance.randrange(3)
            pieces.append(Piece(Place("aa", 1, source, t, True), at, at, b"end"))
            t += 1
        queues.append(pieces)
    log = []
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        log.append(queue.pop(0))
    return log


def run(log: list[Piece], sources: int, position: LogPosition = START) -> list[list[bytes]]:
    collector = TickCollector(sources, position)
    closed = []
    for offset in range(position.resume, len(log)):
        collector.add(offset, log[offset])
        closed += collector.close(100)
    return closed


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_each_piece_in_exactly_one_tick(seed: int, sources: int) -> None:
    log = make_log(seed, sources, 12)
    closed = run(log, sources)
    bodies = [body for tick in closed for body in tick if body != b"end"]
    assert len(bodies) == len(set(bodies))
    wanted = {piece.body for piece in log if piece.body != b"end" and piece.place.t <= len(closed)}
    assert set(bodies) == wanted
    for t, tick in enumerate(closed, 1):
        assert set(tick) - {b"end"} == {p.body for p in log if p.place.t == t and p.body != b"end"}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.data())
def test_resume_anywhere_gives_the_same_ticks(seed: int, sources: int, data: st.DataObject) -> None:
    log = make_log(seed, sources, 12)
    whole = run(log, sources)
    stop = data.draw(st.integers(0, len(log)))
    limit = data.draw(st.integers(1, 3))
    collector = TickCollector(sources, START)
    before: list[list[bytes]] = []
    for offset in range(stop):
        collector.add(offset, log[offset])
        before += collector.close(limit)
    position = LogPosition.decode(collector.position().encode())
    assert before + run(log, sources, position) == whole


@pytest.mark.slow
def test_a_piece_twice_is_refused() -> None:
    collector = TickCollector(1, START)
    piece = Piece(Place("aa", 1, 0, 1, False), 5, 9, b"x")
    collector.add(0, piece)
    with pytest.raises(IntegrityError, match="repeats or lacks"):
        collector.add(1, piece)


@pytest.mark.slow
def test_a_gap_in_a_sequence_is_refused() -> None:
    collector = TickCollector(1, START)
    collector.add(0, Piece(Place("aa", 1, 0, 1, False), 5, 9, b"x"))
    with pytest.raises(IntegrityError, match="repeats or lacks"):
        collector.add(1, Piece(Place("aa", 1, 0, 1, False), 10, 11, b"x"))


@pytest.mark.slow
def test_a_piece_for_an_ended_tick_is_refused() -> None:
    collector = TickCollector(2, START)
    collector.add(0, Piece(Place("aa", 1, 0, 3, True), 5, 9, b"x"))
    with pytest.raises(IntegrityError, match="had ended"):
        collector.add(1, Piece(Place("aa", 1, 0, 3, False), 9, 11, b"x"))


@pytest.mark.slow
def test_a_late_piece_after_a_resume_is_refused() -> None:
    collector = TickCollector(1, START)
    collector.add(0, Piece(Place("aa", 1, 0, 3, True), 5, 9, b"x"))
    collector.close(10)
    again = TickCollector(1, collector.position())
    with pytest.raises(IntegrityError, match="had ended"):
        again.add(1, Piece(Place("aa", 1, 0, 2, False), 9, 9, b"x"))


def test_a_gap_after_a_resume_is_refused() -> None:
    collector = TickCollector(1, START)
    collector.add(0, Piece(Place("aa", 1, 0, 1, True), 5, 9, b"x"))
    collector.close(10)
    TickCollector(1, collector.position()).add(1, Piece(Place("aa", 1, 0, 2, True), 9, 11, b"x"))
    with pytest.raises(IntegrityError, match="repeats or lacks"):
        TickCollector(1, collector.position()).add(1, Piece(Place("aa", 1, 0, 2, True), 10, 11, b"x"))


def test_sources_cannot_be_taken_away() -> None:
    collector = TickCollector(2, START)
    with pytest.raises(IntegrityError, match="fewer sources"):
        TickCollector(1, collector.position())
    assert TickCollector(3, collector.position()).waiting_for() == [0, 1, 2]


def test_nothing_closes_before_every_source_has_ended() -> None:
    collector = TickCollector(2, START)
    collector.add(0, Piece(Place("aa", 1, 0, 5, True), 0, 0, b""))
    assert collector.close(10) == []
    assert collector.waiting_for() == [1]
    collector.add(1, Piece(Place("aa", 1, 1, 2, True), 0, 0, b""))
    assert len(collector.close(10)) == 2


def test_a_position_of_another_version_is_refused() -> None:
    data = START.encode()
    with pytest.raises(IntegrityError, match="version"):
        LogPosition.decode(b"\x02" + data[1:])
    with pytest.raises(IntegrityError, match="short"):
        LogPosition.decode(data[:-1])
