"""The frame of a stage that works on one partition at a time: own it, read it, commit, give it up.

Each owned partition recovers by itself from what is durable. What is only unreachable is tried again
from there; every other failure ends the worker. Records and unfinished work of a partition that has
gone are dropped before anything else happens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka.config import WorkerConfig
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.stage import Stall

__all__ = ["OwnedPartition", "PartitionStage", "partition_stage"]

_LOG: Final = logging.getLogger(__name__)
_POLL_MS: Final = 100
_RETRY_S: Final = 1.0


class OwnedPartition(Protocol):
    """One partition's work while this member owns it. Opening it fences every older owner."""

    def read(self, records: Sequence[Any]) -> None:
        """Take in records, in order of offsets."""
        ...

    def commit(self) -> bool:
        """Do what can be done with what was read, in one transaction; whether there was anything."""
        ...

    def close(self) -> None:
        """Give it up; whatever is not committed is forgotten."""
        ...


class PartitionStage:
    """Opens, runs and drops partitions as the group assigns them. See `Stage`.

    Args:
        name: of the stage.
        member: this worker's place in the group of the stage.
        open_partition: recovers a partition; called between polls.
        stall_s: records wait and nothing moves, or a partition starts over again and again, for so long: the
            stage fails.

    Guarantees:
        - nothing that was read of a partition before it was revoked, or before it was opened again, is
          worked on afterwards (tests/kafka/test_partition_stage.py).
    """

    def __init__(
        self, name: str, member: GroupMember, open_partition: Callable[[int], OwnedPartition], stall_s: float
    ) -> None:
        self.name: Final = name
        self._member: Final = member
        self._open: Final = open_partition
        self._owned: dict[int, OwnedPartition] = {}
        self._retry: dict[int, float] = {}
        self._unproven: set[int] = set()
        self._stall: Final = Stall(name, stall_s)
        self._ready = False

    def turn(self) -> None:
        """See `Stage`."""
        polled = self._member.poll(_POLL_MS)
        for partition in polled.gone:
            self._drop(partition)
            self._retry.pop(partition, None)
            self._unproven.discard(partition)
        for partition in polled.came:
            self._drop(partition)
            self._retry[partition] = 0.0
        for partition, records in polled.records.items():
            self._guarded(partition, partial(_read, records=records))
        self._open_due()  # after the reading: these records were fetched before the seek that opening does
        for partition in tuple(self._owned):
            if self._guarded(partition, _commit):
                self._unproven.discard(partition)
        idle = not self._member.lag()
        if idle and not self._retry:
            self._unproven.clear()
        if (polled.records or idle) and not self._unproven:
            self._stall.moved()
        self._stall.check()
        self._ready = self._member.joined() and not self._retry

    def ready(self) -> bool:
        """See `Stage`."""
        return self._ready

    def drain(self) -> None:
        """See `Stage`."""
        for partition in tuple(self._owned):
            self._drop(partition)
        self._member.leave()

    def _open_due(self) -> None:
        now = time.monotonic()
        for partition, due in tuple(self._retry.items()):
            if now < due:
                continue
            self._retry[partition] = now + _RETRY_S
            try:
                opened = self._open(partition)
            except ServiceUnavailable as error:
                self._unproven.add(partition)
                _LOG.warning("%s: partition %d cannot be opened yet: %s", self.name, partition, error)
                continue
            self._owned[partition] = opened
            del self._retry[partition]
            if not self._unproven:
                self._stall.moved()  # recovery may have taken long

    def _guarded(self, partition: int, work: Callable[[OwnedPartition], bool]) -> bool:
        """Whether the work did something; what is only unreachable is tried again, from what is durable."""
        owned = self._owned.get(partition)
        if owned is None:  # not opened yet: opening seeks back to its records
            return False
        try:
            return work(owned)
        except ServiceUnavailable as error:
            _LOG.warning("%s: partition %d starts over: %s", self.name, partition, error)
            self._drop(partition)
            self._retry[partition] = time.monotonic() + _RETRY_S
            self._unproven.add(partition)
            return False

    def _drop(self, partition: int) -> None:
        owned = self._owned.pop(partition, None)
        if owned is not None:
            owned.close()


def partition_stage(
    config: WorkerConfig,
    name: str,
    topic: str,
    open_partition: Callable[[int, GroupMember], OwnedPartition],
    *,
    max_poll_records: int = 500,
) -> PartitionStage:
    """The stage of a worker that works on the partitions of a topic as its member of the stage's group."""
    member = GroupMember(config.broker, config.membership(name), topic, max_poll_records=max_poll_records)
    return PartitionStage(name, member, lambda number: open_partition(number, member), config.stall_s)


def _read(owned: OwnedPartition, records: Sequence[Any]) -> bool:
    owned.read(records)
    return True


def _commit(owned: OwnedPartition) -> bool:
    return owned.commit()
