"""Reading a changelog: what was emptied, from either end, is never taken for a state. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.changelog import read_changelog

PLACE = TopicPartition("unit-state", 1)


class PlayedChangelog:
    """Offsets [first, end); only what reading calls."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end, self.at = first, end, -1

    def reader(self) -> PlayedChangelog:
        return self

    def assign(self, places: list[TopicPartition]) -> None:
        assert places == [PLACE]

    def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.first)

    def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.end)

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self.at = offset

    def position(self, _place: TopicPartition) -> int:
        return self.at

    def poll(self, **_: Any) -> dict[TopicPartition, list[SimpleNamespace]]:
        found = [SimpleNamespace(offset=offset) for offset in range(self.at, min(self.at + 4, self.end))]
        self.at += len(found)
        return {PLACE: found}

    def close(self, **_: Any) -> None:
        """Nothing to do."""


def offsets(log: PlayedChangelog, applied: int, at_least: int) -> list[int]:
    batches = read_changelog(log, PLACE, applied, at_least)  # type: ignore[arg-type]
    return [record.offset for records, _ in batches for record in records]


@pytest.mark.parametrize(("first", "applied"), [(0, 0), (0, 7), (7, 7), (6, 9)])
def test_it_is_read_from_where_the_copy_ends(first: int, applied: int) -> None:
    assert offsets(PlayedChangelog(first, 10), applied, 10) == list(range(applied, 10))


@pytest.mark.parametrize(
    ("first", "end", "applied", "at_least"), [(0, 10, 0, 11), (0, 10, 11, 0), (1, 10, 0, 5), (8, 10, 7, 9)]
)
def test_records_that_were_deleted_are_missed(first: int, end: int, applied: int, at_least: int) -> None:
    """A unit whose state is gone would contribute again."""
    with pytest.raises(IntegrityError):
        offsets(PlayedChangelog(first, end), applied, at_least)
