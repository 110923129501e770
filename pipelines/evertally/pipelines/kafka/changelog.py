"""Reading a compacted changelog from where a copy ends to where the topic ends now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.kafka.reading import read_up_to

__all__ = ["read_changelog"]


def read_changelog(
    broker: Broker, place: TopicPartition, applied: int, at_least: int
) -> Iterator[tuple[list[Any], int]]:
    """(records, offset behind them), batch by batch, up to the changelog's end.

    Args:
        broker: the cluster.
        place: the changelog's partition; its writer is fenced, so that it grows no more.
        applied: offset up to which the reader's copy is complete; 0 for none.
        at_least: offset that the last commit has written up to.

    Raises IntegrityError where the changelog ends before either, or begins behind the copy: it was emptied.
    Compaction never moves a topic's beginning.
    """
    reader = broker.reader()
    try:
        with translated():
            reader.assign([place])
            end: int = reader.end_offsets([place])[place]
            if end < max(at_least, applied):
                raise IntegrityError(f"partition {place.partition} of {place.topic} was emptied or replaced")
            first: int = reader.beginning_offsets([place])[place]
            if first > applied:
                raise IntegrityError(
                    f"records were deleted from the beginning of partition {place.partition} of {place.topic}"
                )
            reader.seek(place, applied)
            yield from read_up_to(reader, place, end)
    finally:
        reader.close(autocommit=False)
