"""Sealed closings that are pasted, repeated or damaged, and records meant to stop a job or to be shown."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.flink.test_flink_combine import KEYS, combine, job

from evertally.errors import EvertallyError, IntegrityError
from evertally.pipelines.flink.combine import BatchCombiner
from evertally.pipelines.flink.lanes import LaneHead, cut_pieces
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.sealed_records import Place, StreamSealer
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.sealing import Sealer

KEY, LIFE = os.urandom(32), os.urandom(16)
START = LogPosition(0, 0, 0, ())
NEW = LaneHead(1, 0)
Record = tuple[bytes | None, bytes | None]


def sealer(*, key: bytes = KEY, topic: str = "s.closed", life: bytes = LIFE, inc: int = 1) -> StreamSealer:
    return StreamSealer(key, topic, life, inc)


def closings(through: int, *, head: LaneHead = NEW, of: StreamSealer | None = None) -> list[Record]:
    """One lane's closings up to a tick, all in one go: each tick adds its own number."""
    made = of or sealer()
    totals = {t: {0: t} for t in range(head.open_tick, through + 1)}
    pieces, _ = cut_pieces(made.life, made.incarnation, 0, head, through, totals, [[0]])
    return [made.seal(piece, shard) for shard, piece in pieces]


def released(log: list[Record]) -> list[int]:
    """What the releaser would make of a log of one lane."""
    collector, reader = TickCollector(1, START), sealer()
    for offset, (key, value) in enumerate(log):
        piece = reader.open(key, value, 0)
        if piece is None:
            collector.skip_to(offset + 1)
        else:
            collector.add(offset, piece)
    return [add_sums(map(decode_sums, bodies)).get(0, 0) for bodies in collector.close(1000)]


def test_a_closing_that_stands_twice_is_refused_wherever_its_copy_stands() -> None:
    log = closings(5)
    assert released(log) == [1, 2, 3, 4, 5]
    for original in range(5):
        for place in range(original + 1, 6):
            with pytest.raises(IntegrityError):
                released([*log[:place], log[original], *log[place:]])


def test_a_copy_is_refused_after_a_resume_too() -> None:
    log, reader = closings(2) + closings(6, head=LaneHead(3, 1)), sealer()
    first = TickCollector(1, START)
    for offset in range(4):
        piece = reader.open(*log[offset], 0)
        assert piece is not None
        first.add(offset, piece)
    first.close(2)
    again = TickCollector(1, LogPosition.decode(first.position().encode()))
    for offset in (2, 3):
        piece = reader.open(*log[offset], 0)
        assert piece is not None
        again.add(offset, piece)
    for copy in log[:4]:
        piece = reader.open(*copy, 0)
        assert piece is not None
        with pytest.raises(IntegrityError):
            again.add(4, piece)


def test_closings_of_another_place_do_not_count() -> None:
    log = closings(3)
    for other in (
        sealer(key=os.urandom(32)),
        sealer(topic="t.closed"),
    ):
        with pytest.raises(IntegrityError):
            released([*log, *closings(4, head=LaneHead(4, 1), of=other)])
    for other in (sealer(life=os.urandom(16)), sealer(inc=2)):  # passed over: another life, another charge
        assert released([*log, *closings(4, head=LaneHead(4, 1), of=other)]) == [1, 2, 3]
    later = closings(4, head=LaneHead(4, 1))
    with pytest.raises(IntegrityError):
        sealer().open(*later[0], 1)  # another partition
    mine = Place(sealer().life, 1, 0, 4, True).encode()
    for key in (mine.replace(b'"t":4', b'"t":5'), mine.replace(b'"src":0', b'"src":1')):
        with pytest.raises(IntegrityError):
            sealer().open(key, later[0][1], 0)


def test_every_cut_and_every_flipped_bit_of_a_closing_is_refused_by_name() -> None:
    ((key, value),) = closings(1)
    assert key is not None
    assert value is not None
    reader = sealer()
    for size in [*range(40), len(value) - 1]:
        with pytest.raises(IntegrityError):
            reader.open(key, value[:size], 0)
    for bit in range(0, 8 * len(value), 7):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IntegrityError):
            reader.open(key, bytes(flipped), 0)
    for bit in range(8 * len(key)):
        torn = bytearray(key)
        torn[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(IntegrityError):
            assert reader.open(bytes(torn), value, 0) is None
    for odd in (None, b"", b"\xff", b"[]", b"{}", b"[" * 10**5, key + b" ", key.replace(b"1", b"1.0", 1)):
        with pytest.raises(IntegrityError):
            reader.open(odd, value, 0)
    with pytest.raises(IntegrityError):
        reader.open(key, None, 0)


def test_a_state_of_a_lane_opens_in_no_other_place() -> None:
    """An older savepoint's bytes are those of another tick only by their content; place and key are bound."""
    sealed = Sealer(KEY, "flink-state/4/s", 1).seal(LaneHead(7, 6).encode(), 2, 0)
    for other in (
        Sealer(KEY, "flink-state/8/s", 1),
        Sealer(KEY, "flink-state/4/t", 1),
        Sealer(KEY, "flink-state/4/s", 2),
        Sealer(os.urandom(32), "flink-state/4/s", 1),
    ):
        with pytest.raises(IntegrityError):
            other.open(sealed, 2, 0)
    for lane, place in ((1, 0), (2, 1), (2, 16)):
        with pytest.raises(IntegrityError):
            Sealer(KEY, "flink-state/4/s", 1).open(sealed, lane, place)


def test_a_job_that_goes_back_in_time_is_refused() -> None:
    """Ticks 1 to 3, then a job from a savepoint behind tick 1: the one that closes at once what it missed."""
    log = closings(1) + closings(2, head=LaneHead(2, 1)) + closings(3, head=LaneHead(3, 2))
    for through in (2, 3, 9):
        with pytest.raises(IntegrityError):
            released([*log, *closings(through, head=LaneHead(2, 1))])


CANARY = "canary-918273645546"
ODD: list[bytes | None] = [
    None,
    b"",
    b"\x00",
    b"\xff\xfe",
    b'{"k":"a\\u0000","n":1}',
    b'{"k":"\\ud800","n":1,"u":"\\udfff"}',
    b'{"k":"a","n":' + b"9" * 5000 + b"}",
    b'{"k":"a","n":-' + b"9" * 4000 + b"}",
    b'{"k":"a","n":1e999999999999}',
    b'{"k":"a","n":1e-999999999999}',
    b'{"k":"a","n":NaN}',
    b'{"k":"a","n":-Infinity}',
    b'{"k":"a","n":true}',
    b'{"k":"a","n":"1"}',
    b'{"k":"a","n":null}',
    b'{"k":"a","n":{"a":1}}',
    b'{"k":["a"],"n":1}',
    b'{"k":' + b"9" * 4000 + b',"n":1}',
    b'{"k":"' + b"a" * 300_000 + b'","n":1}',
    b"[" * 100_000 + b"]" * 100_000,
    b'{"k":"a","n":1,"k":"b"}',
    f'{{"k":"{CANARY}","n":"{CANARY}"}}'.encode(),
    CANARY.encode() + b"\n{}",
]


@pytest.mark.parametrize("unit", ["event", "person"])
def test_no_record_stops_a_job_or_shows_itself(
    tmp_path: Path, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source = 'unit = "u"' if unit == "person" else ""
    parameters = job(tmp_path, unit=unit, source=source)
    good = b'{"k":"a","n":7,"u":"p"}'
    values = [good, *ODD, good]
    messages = combine(parameters, values, [n % 3 for n in range(len(values))])
    letters = [json.loads(letter.body) for message in messages for letter in message.letters]
    counted: Counter[int] = Counter()
    for message in messages:
        for key, amount in message.rows[-2:].T.tolist():
            counted[key] += amount
    assert counted[0] >= 7
    places = {(letter["partition"], letter["offset"]) for letter in letters}
    assert len(places) == len(letters)
    assert CANARY not in json.dumps(letters) + caplog.text


def test_events_beyond_an_extended_horizon_are_counted(tmp_path: Path) -> None:
    """Tick 6 is beyond the four that were paid for first, and within what was paid for later."""
    good = b'{"k":"a","n":7}'
    for extended, found in ((4, [0, 1]), (8, [7, 0])):
        (message,) = combine(job(tmp_path, extended=extended), [good], [0])
        assert [int(message.rows[-1:].sum()), len(message.letters)] == found


def test_each_batch_without_the_odd_ones_is_the_same(tmp_path: Path) -> None:
    """What is wrong with one record changes nothing of another one, nor the path on which it is read."""
    parameters = job(tmp_path)
    good = [json.dumps({"k": "abc"[n % 3], "n": n}).encode() for n in range(30)]
    alone = combine(parameters, good, [0] * 30)
    mixed = combine(parameters, [*good, b"{", None, b"\xff"], [0] * 33)
    assert alone[0].rows.tolist() == mixed[0].rows.tolist()


def test_what_travels_with_a_job_holds_no_key_and_what_holds_one_does_not_travel(tmp_path: Path) -> None:
    parameters = job(tmp_path)
    travels = pickle.dumps(parameters) + repr(parameters).encode()
    for secret in (KEYS.closing, KEYS.unit, KEYS.dead_letter):
        assert secret not in travels
    combiner = BatchCombiner(parameters, KEYS)
    combiner.combine([f'{{"k":"{CANARY}"}}'.encode()], np.zeros(1, np.int64), np.zeros(1, np.int64), 5_500)
    held: tuple[Any, ...] = (combiner, KEYS, parameters.closings_sealer(KEYS), parameters.state_sealer(KEYS))
    for one in held:
        with pytest.raises((TypeError, AttributeError, EvertallyError, pickle.PicklingError)) as caught:
            pickle.dumps(one)
        assert CANARY not in str(caught.value) + repr(one)
