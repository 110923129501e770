"""What a Beam job's steps hand to each other, and what they remember: no runner needed."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.beam.runner_state import Bag

from evertally.errors import IntegrityError, InvalidParameter, ServiceUnavailable
from evertally.pipelines.beam import KeyRef, LedgerRef
from evertally.pipelines.beam.partition_place import PartitionPlace, PartitionTracker
from evertally.pipelines.beam.parts import UNKNOWN, Part, PartSealer, merge
from evertally.pipelines.beam.positions import Cuts, Digests
from evertally.pipelines.beam.refs import with_password, without_password
from evertally.pipelines.beam.tick_order import take_turn
from evertally.pipelines.beam.unit_ledger import UnitLedger
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.kafka.unit_bound import Contributed

SEALER = PartSealer(b"k" * 32, "s")


def whole(t: int, source: int, sums: dict[int, int] | None = None, sent: int | None = None) -> Part:
    count = len(sums or {})
    return Part(t, sums or {}, events=count, ends={source: count if sent is None else sent})


def turn(bag: Bag, part: Part, following: int, sources: int = 2, *, counted: bool = True) -> list[int]:
    return [one.t for one in take_turn(part, SEALER, bag, following, sources, counted=counted)]


def test_parts_survive_sealing_and_show_nothing() -> None:
    part = Part(7, {0: 2**100, 3: -5}, np.array([[1], [2], [3]]), 4, {0: 3, 2: UNKNOWN}, {1: (10, 20)})
    opened = SEALER.open(SEALER.seal(part))
    assert (opened.t, opened.sums, opened.events) == (7, {0: 2**100, 3: -5}, 4)
    assert (opened.ends, opened.cuts) == ({0: 3, 2: UNKNOWN}, {1: (10, 20)})
    assert opened.rows.tolist() == [[1], [2], [3]]
    assert "1267650600228229401496703205376" not in repr(part)
    for other in (PartSealer(b"x" * 32, "s"), PartSealer(b"k" * 32, "t")):
        with pytest.raises(IntegrityError):
            other.open(SEALER.seal(part))
    for held in (part, SEALER):
        with pytest.raises(TypeError):
            pickle.dumps(held)
    assert len(SEALER.seal(Part(1))) == len(SEALER.seal(Part(1, {0: 10**12}, events=10**6)))


def test_merging_adds_and_notices_contradictions() -> None:
    both = merge([whole(3, 0, {0: 2, 1: 1}), whole(3, 1, {0: 5})])
    assert both.sums == {0: 7, 1: 1}
    assert both.ends == {0: 2, 1: 1}
    with pytest.raises(IntegrityError, match="twice"):
        merge([whole(3, 0), whole(3, 0)])
    with pytest.raises(IntegrityError, match="contradict"):
        merge([Part(3, cuts={0: (1, 2)}), Part(3, cuts={0: (1, 3)})])


def test_ticks_take_their_turn_in_order_and_only_when_whole() -> None:
    bag = Bag()
    assert turn(bag, whole(2, 0), 1) == []
    assert turn(bag, whole(2, 1), 1) == []
    assert turn(bag, whole(1, 0), 1) == []
    assert turn(bag, whole(1, 1, {0: 4}, sent=2), 1) == []  # one contribution is still on its way
    assert turn(bag, Part(1, {0: 1}, events=1), 1) == [1, 2]
    assert bag.held == []
    with pytest.raises(IntegrityError, match="repeated"):
        turn(bag, Part(3, {0: 9}, events=9, ends={0: 1, 1: 0}), 3)


def test_what_comes_late_without_counts_goes_to_the_next_tick() -> None:
    bag = Bag()
    assert turn(bag, Part(1, {0: 1}, events=1), 5, sources=1, counted=False) == []
    (part,) = take_turn(Part(5, ends={0: UNKNOWN}), SEALER, bag, 5, 1, counted=False)
    assert (part.t, part.sums) == (5, {0: 1})


def test_a_released_tick_that_comes_again_is_given_back_alone() -> None:
    bag = Bag()
    assert turn(bag, whole(2, 0), 5) == []
    assert turn(bag, whole(2, 1), 5) == [2]


def test_cuts_follow_one_another_without_a_gap() -> None:
    cuts = Cuts(0, ((), ())).followed_by(Part(1, cuts={0: (0, 5), 1: (3, 3)}), keep=2)
    cuts = cuts.followed_by(Part(2, cuts={0: (5, 9), 1: (3, 4)}), keep=2)
    cuts = cuts.followed_by(Part(3, cuts={0: (9, 9), 1: (4, 8)}), keep=2)
    assert cuts.stops == ((9, 9), (4, 8))
    assert Cuts.decode(cuts.encode()) == cuts
    with pytest.raises(IntegrityError, match="went back"):
        cuts.followed_by(Part(4, cuts={0: (8, 9), 1: (8, 8)}), keep=2)
    with pytest.raises(IntegrityError, match="partition"):
        cuts.followed_by(Part(4, cuts={0: (9, 9)}), keep=2)
    for data in (b"", cuts.encode()[:-1], Digests(3, ()).encode()):
        with pytest.raises(IntegrityError):
            Cuts.decode(data)


def test_a_tick_that_comes_again_must_be_the_same() -> None:
    digests = Digests(0, ()).followed_by(Part(1, {0: 5}, events=5), b"k")
    digests = Digests.decode(digests.followed_by(Part(2, {0: 1}, events=1), b"k").encode())
    digests.require_same(Part(1, {0: 5}, events=5, ends={0: UNKNOWN}), b"k")
    for other in (Part(1, {0: 4}, events=5), Part(2, {0: 5}, events=5), Part(0)):
        with pytest.raises(IntegrityError, match="other data"):
            digests.require_same(other, b"k")


def test_a_new_job_reads_again_with_the_ticks_of_old() -> None:
    place = PartitionPlace.behind(10, (100, 110, 110, 130))  # ends of ticks 7, 8, 9, 10
    assert (place.offset, place.open_tick, place.cut) == (100, 11, 130)
    assert place.segment() == (8, 110)
    assert place.moved(110, {}).segment() == (10, 130)
    behind = place.moved(130, {(11, 0): 2})
    assert behind.segment() is None
    assert behind.sent == {(11, 0): 2}
    assert behind.moved(140, {(11, 0): 1, (12, 0): 4}).ended(11).sent == {(12, 0): 4}
    assert PartitionPlace.behind(3, (50,)).segment() is None


def test_a_checkpoint_stops_what_is_claimed_after_it() -> None:
    tracker = PartitionTracker(PartitionPlace(0, 1, 0))
    assert tracker.try_claim(PartitionPlace(5, 1, 0))
    assert tracker.try_split(0.5) is None
    split = tracker.try_split(0)
    assert split is not None
    assert split[1].offset == 5
    assert split[0].done
    assert not tracker.try_claim(PartitionPlace(9, 1, 0))
    tracker.check_done()
    assert not tracker.is_bounded()
    with pytest.raises(ValueError, match="checkpoint"):
        PartitionTracker(PartitionPlace(0, 1, 0)).check_done()


def test_units_are_cut_back_to_what_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = UnitLedger(tmp_path, "aa", 1, 0, 1)
    units.record(1, {5: Contributed(1, 1)})
    units.record(2, {5: Contributed(2, 2), 6: Contributed(2, 1)})
    monkeypatch.setattr("evertally.pipelines.beam.unit_ledger._BUSY_MS", 50)
    with pytest.raises(ServiceUnavailable):
        UnitLedger(tmp_path, "aa", 1, 0, 1)
    units.close()
    units = UnitLedger(tmp_path, "aa", 1, 0, 1)
    assert units.get([5, 6, 7], 3) == {5: Contributed(2, 2), 6: Contributed(2, 1)}
    units.cut_back(1)
    assert units.get([5, 6], 3) == {5: Contributed(1, 1)}
    with pytest.raises(IntegrityError, match="counted again"):
        units.cut_back(4)
    units.close()


def test_no_password_and_no_key_in_what_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    for location in ("postgresql://u:secret@h/db", "postgresql://h/db?password=secret"):
        with pytest.raises(InvalidParameter) as caught:
            LedgerRef(location)
        assert "secret" not in str(caught.value)
    broker = Broker("h:1", "SASL_SSL", sasl_mechanism="PLAIN", username="u", password="geheim")
    assert b"geheim" not in pickle.dumps(without_password(broker))
    monkeypatch.delenv("EVERTALLY_KAFKA_PASSWORD", raising=False)
    with pytest.raises(InvalidParameter, match="EVERTALLY_KAFKA_PASSWORD"):
        with_password(without_password(broker))
    monkeypatch.setenv("EVERTALLY_KAFKA_PASSWORD", "geheim")
    assert with_password(without_password(broker)) == broker
    monkeypatch.setenv("EVERTALLY_SECRETS", "/mnt/secrets")
    assert KeyRef("secret:visits").path() == Path("/mnt/secrets/visits")
    with pytest.raises(InvalidParameter):
        KeyRef("secret:../key")
