"""Where the groups of a stream begin to read, over a played broker: what is settled, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import LogPosition
from evertally.pipelines.kafka.position_text import encode_position_text
from evertally.pipelines.kafka.start import settle_first_offsets


class PlayedGroup:
    """A group's reader; only what settling calls."""

    def __init__(self, held: dict[int, str]) -> None:
        self.held = {TopicPartition("units", number): (5, text) for number, text in held.items()}
        self.committed_now: dict[int, str] = {}

    def group_reader(self, _group: str) -> PlayedGroup:
        return self

    def assign(self, places: list[TopicPartition]) -> None:
        """Nothing to do."""

    def committed(self, place: TopicPartition, **_: Any) -> SimpleNamespace | None:
        found = self.held.get(place)
        return None if found is None else SimpleNamespace(offset=found[0], metadata=found[1])

    def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], **_: Any) -> None:
        self.committed_now = {place.partition: found.metadata for place, found in offsets.items()}

    def close(self, **_: Any) -> None:
        """Nothing to do."""


def settle(group: PlayedGroup, partitions: int, first: OpenTick, *, own: bool) -> None:
    settle_first_offsets(group, "g", "units", partitions, None, first, begun=True, own=own)  # type: ignore[arg-type]


FIRST = OpenTick("00aa", 2, 1)
BEGUN = (FIRST.encode(), encode_position_text("00aa", 2, LogPosition(9, 5, 7, (3, 3)), 4))


@pytest.mark.parametrize("text", BEGUN)
def test_a_topic_of_units_does_not_grow_under_a_stream(text: str) -> None:
    """A unit goes to the partition of its number modulo their number: it would be counted anew."""
    group = PlayedGroup({0: text, 1: text})
    settle(group, 2, FIRST, own=True)
    with pytest.raises(IntegrityError, match="count again"):
        settle(group, 3, FIRST, own=True)
    assert group.committed_now == {}


def test_a_new_incarnation_may_begin_with_more_partitions() -> None:
    group = PlayedGroup(dict.fromkeys((0, 1), BEGUN[1]))
    first = OpenTick("00aa", 3, 1)
    settle(group, 3, first, own=True)
    assert group.committed_now == {2: first.encode()}


def test_the_input_may_grow() -> None:
    group = PlayedGroup(dict.fromkeys((0, 1), BEGUN[0]))
    settle(group, 3, FIRST, own=False)
    assert group.committed_now == {2: FIRST.encode()}
