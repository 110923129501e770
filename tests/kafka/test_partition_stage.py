"""The frame of stages by partition, over a group member that plays back what a poll brings. No broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines.kafka.member import Polled
from evertally.pipelines.kafka.partition_stage import PartitionStage
from evertally.pipelines.kafka.stage import Stall

NOTHING = Polled((), (), {})


class PlayedMember:
    """Gives back one prepared poll after the other; `at` is where each partition was last positioned."""

    def __init__(self, *polls: Polled) -> None:
        self._polls = list(polls)
        self.left = False
        self.waiting: int | None = 0

    def poll(self, timeout_ms: int) -> Polled:  # noqa: ARG002 - the member's signature
        return self._polls.pop(0) if self._polls else NOTHING

    def lag(self) -> int | None:
        return self.waiting

    def joined(self) -> bool:
        return True

    def leave(self) -> None:
        self.left = True


class Log:
    """What happened to each opening of a partition."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []
        self.may_commit = True
        self.fail_commit: BaseException | None = None
        self.fail_open: BaseException | None = None
        self.fail_full_only = False
        self._openings = 0

    def open(self, partition: int) -> Opened:
        if self.fail_open is not None:
            raise self.fail_open
        self._openings += 1
        self.events.append(("open", partition, self._openings))
        return Opened(self, partition, self._openings)


class Opened:
    def __init__(self, log: Log, partition: int, number: int) -> None:
        self._log, self._partition, self._number = log, partition, number
        self._buffer: list[Any] = []

    def read(self, records: Sequence[Any]) -> None:
        self._buffer += records

    def commit(self) -> bool:
        if self._log.fail_commit is not None and (self._buffer or not self._log.fail_full_only):
            raise self._log.fail_commit
        if not (self._buffer and self._log.may_commit):
            return False
        self._log.events.append(("commit", self._number, tuple(self._buffer)))
        self._buffer = []
        return True

    def close(self) -> None:
        self._log.events.append(("close", self._number, tuple(self._buffer)))


def run(stage: PartitionStage, turns: int) -> None:
    for _ in range(turns):
        stage.turn()


def make(log: Log, *polls: Polled, stall_s: float = 60.0) -> tuple[PartitionStage, PlayedMember]:
    member = PlayedMember(*polls)
    return PartitionStage("release", member, log.open, stall_s), member  # type: ignore[arg-type]  # a player


def committed(log: Log) -> list[tuple[int, Any]]:
    return [(number, records) for what, number, records in log.events if what == "commit"]


@pytest.mark.slow
def test_records_read_before_a_revocation_are_dropped() -> None:
    """faust-streaming#221, #216: prefetched records are processed after a rebalance."""
    log = Log()
    log.fail_commit = None
    stage, _ = make(
        log,
        Polled((), (0,), {}),
        Polled((), (), {0: ["a"]}),
        Polled((0,), (), {0: ["prefetched"]}),  # the fetcher still had it when the partition went
        NOTHING,
        Polled((), (0,), {0: ["fetched before the owner sought"]}),
        Polled((), (), {0: ["b"]}),
    )
    run(stage, 6)
    assert committed(log) == [(1, ("a",)), (2, ("b",))]
    assert [event[:2] for event in log.events if event[0] != "commit"] == [
        ("open", 0),
        ("close", 1),
        ("open", 0),
    ]


def test_work_that_waits_for_a_commit_is_dropped_with_its_partition() -> None:
    log = Log()
    stage, _ = make(log, Polled((), (0, 1), {}), Polled((), (), {0: ["a"], 1: ["b"]}), Polled((0,), (), {}))
    run(stage, 1)
    log.may_commit = False  # not every source has ended the tick
    run(stage, 2)
    log.may_commit = True
    run(stage, 1)
    assert ("close", 1, ("a",)) in log.events
    assert committed(log) == [(2, ("b",))]


def test_records_fetched_before_a_partition_is_opened_again_are_dropped() -> None:
    """Opening seeks back to what is durable: what an earlier poll fetched lies ahead of it."""
    log = Log()
    stage, _ = make(log, Polled((), (0,), {}), Polled((), (), {0: ["a"]}), Polled((), (), {0: ["ahead"]}))
    run(stage, 1)
    log.fail_commit = ServiceUnavailable("a Kafka transaction failed")
    run(stage, 1)  # closed, and opened again a second later
    log.fail_commit = None
    stage._retry[0] = 0.0
    run(stage, 2)
    assert committed(log) == []
    assert [event[:2] for event in log.events] == [("open", 0), ("close", 1), ("open", 0)]


def test_a_partition_that_comes_again_starts_over() -> None:
    log = Log()
    stage, _ = make(log, Polled((), (0,), {}), Polled((), (0,), {}), Polled((), (), {0: ["a"]}))
    run(stage, 3)
    assert committed(log) == [(2, ("a",))]


@pytest.mark.slow
def test_what_cannot_be_opened_yet_is_tried_again_and_holds_readiness_back() -> None:
    log = Log()
    stage, member = make(log, Polled((), (0,), {}))
    log.fail_open = ServiceUnavailable("the ledger does not answer")
    run(stage, 1)
    assert not stage.ready()
    log.fail_open = None
    stage._retry[0] = 0.0
    run(stage, 1)
    assert stage.ready()
    stage.drain()
    assert member.left
    assert log.events[-1][0] == "close"


def test_any_other_failure_ends_the_stage() -> None:
    log = Log()
    stage, _ = make(log, Polled((), (0,), {}))
    log.fail_open = IntegrityError("the topic was emptied")
    with pytest.raises(IntegrityError):
        run(stage, 1)


@pytest.mark.slow
def test_lag_without_progress_is_noticed() -> None:
    """kafka-python#3106: a consumer stalls after one batch."""
    log = Log()
    stage, member = make(log, Polled((), (0,), {}), Polled((), (), {0: ["a"]}), stall_s=0.5)
    run(stage, 2)
    member.waiting = 5
    run(stage, 1)
    time.sleep(0.6)
    with pytest.raises(ServiceUnavailable, match="stalled"):
        run(stage, 1)


def fail_again_and_again(*, commits_at: frozenset[int]) -> list[tuple[int, Any]]:
    """What is committed in eight turns a second apart, the records coming anew after each failure."""
    log = Log()
    log.fail_full_only = True
    again = [Polled((), (), {0: ["a"]}), NOTHING] * 4
    stage, member = make(log, Polled((), (0,), {}), *again)
    member.waiting, now = 1, 0.0
    stage._stall = Stall("release", 5.5, lambda: now)  # type: ignore[misc]  # a clock of its own
    for turn in range(8):
        now = float(turn)
        log.fail_commit = None if turn in commits_at else ServiceUnavailable("a Kafka transaction failed")
        stage._retry = dict.fromkeys(stage._retry, 0.0)
        stage.turn()
    return committed(log)


@pytest.mark.slow
def test_starting_over_for_ever_is_noticed() -> None:
    with pytest.raises(ServiceUnavailable, match="stalled"):
        fail_again_and_again(commits_at=frozenset())


@pytest.mark.slow
def test_a_commit_after_failures_counts_as_progress() -> None:
    assert len(fail_again_and_again(commits_at=frozenset({3, 7}))) == 2
