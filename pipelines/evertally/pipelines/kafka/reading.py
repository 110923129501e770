"""Reading a partition from where a reader stands to a known end, never waiting there for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka.broker import TopicPartition

__all__ = ["read_up_to"]

_POLL_MS: Final = 1000
_STALL_S: Final = 60.0


def read_up_to(
    reader: Any, place: TopicPartition, end: int, *, stall_s: float = _STALL_S
) -> Iterator[tuple[list[Any], int]]:
    """(records, offset behind them), batch by batch, up to `end`; a batch may be empty.

    A position also passes what transactions leave between records, so it says when the end is reached.

    Raises ServiceUnavailable where it does not move for `stall_s`; the client itself never does.
    """
    moved_at = time.monotonic()
    while (position := int(reader.position(place))) < end:
        records = reader.poll(timeout_ms=_POLL_MS).get(place, [])
        if records or int(reader.position(place)) > position:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > stall_s:
            raise ServiceUnavailable(
                f"partition {place.partition} of {place.topic} gave no records for {stall_s:g} s"
            )
        yield records, records[-1].offset + 1 if records else position
