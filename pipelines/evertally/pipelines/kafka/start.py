"""The very first start: where reading begins, made durable before anything is read.

`--from` is taken exactly once. Later the committed offsets are the only truth, and a missing one is an
error: `earliest` would count events again, `latest` would lose them, both silently.
"""

from __future__ import annotations

from typing import Any, Final

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.timestamps import BadTimestamp, parse_timestamp

__all__ = ["settle_first_offsets"]

_TIMEOUT_MS: Final = 60_000


def settle_first_offsets(
    broker: Broker,
    group: str,
    topic: str,
    partitions: int,
    start_from: str | None,
    first: OpenTick,
    *,
    begun: bool,
    own: bool = False,
) -> None:
    """Commit a starting offset for every partition where the group has none.

    Args:
        broker: the cluster.
        group: the aggregating group.
        topic: the input.
        partitions: its number of partitions.
        start_from: "earliest", "latest", an RFC 3339 time or epoch milliseconds; None after the first start.
        first: text of the first open tick.
        begun: whether the stream has begun (its closings topic is not empty).
        own: the topic is the stream's own; it is read from its beginning, and an incarnation that has begun
            takes no further partitions: a unit would move to one that knows nothing of it, and count again.

    Raises:
        InvalidParameter: a first start without `start_from`, or a later one with it.
        IntegrityError: the stream has begun and the group's offsets are gone; a topic of its own has grown.
    """
    reader = broker.group_reader(group)
    try:
        with translated():
            places = [TopicPartition(topic, number) for number in range(partitions)]
            reader.assign(places)
            held = {tp: reader.committed(tp, metadata=True, timeout_ms=_TIMEOUT_MS) for tp in places}
            missing = [tp for tp in places if held[tp] is None]
            if start_from is not None and (begun or len(missing) < len(places)):
                raise InvalidParameter("--from", start_from, "no --from after the first start of a stream")
            if not missing:
                return
            if len(missing) == len(places):
                if begun:
                    raise IntegrityError(
                        f"group {group} has no committed offsets, but the stream has begun; going on would "
                        "lose events or count them again"
                    )
                if own:
                    start_from = "earliest"
                if start_from is None:
                    raise InvalidParameter(
                        "--from", "nothing", "earliest, latest or a time at the first start"
                    )
                offsets = _first_offsets(reader, missing, start_from)
            else:
                if own:
                    _refuse_growth(topic, [held[tp].metadata for tp in places if held[tp] is not None], first)
                offsets = _new_partitions(reader, missing)
            _commit(reader, {tp: OffsetAndMetadata(at, first.encode(), -1) for tp, at in offsets.items()})
    finally:
        reader.close(autocommit=False)


def _first_offsets(reader: Any, places: list[TopicPartition], start_from: str) -> dict[TopicPartition, int]:
    if start_from == "earliest":
        return dict(reader.beginning_offsets(places))
    ends: dict[TopicPartition, int] = reader.end_offsets(places)
    if start_from == "latest":
        return ends
    try:
        at_ms = parse_timestamp(start_from, None)
    except BadTimestamp:
        raise InvalidParameter(
            "--from", start_from, "earliest, latest, an RFC 3339 time with an offset, or epoch milliseconds"
        ) from None
    found = reader.offsets_for_times(dict.fromkeys(places, at_ms))
    return {tp: ends[tp] if found.get(tp) is None else found[tp].offset for tp in places}


def _refuse_growth(topic: str, texts: list[str], first: OpenTick) -> None:
    for text in texts:
        if OpenTick.decode(" ".join(text.split(" ")[:4])).incarnation >= first.incarnation:
            raise IntegrityError(
                f"topic {topic} has more partitions than incarnation {first.incarnation} began with: units "
                "would be forgotten and count again; a new incarnation may begin with more"
            )


def _new_partitions(reader: Any, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Partitions added to the topic since: all of their records are new, so none may have been deleted."""
    beginnings: dict[TopicPartition, int] = reader.beginning_offsets(places)
    for tp, offset in beginnings.items():
        if offset != 0:
            raise IntegrityError(
                f"partition {tp.partition} of {tp.topic} has no committed offset, and does not begin "
                "at 0: records were deleted before they were counted"
            )
    return beginnings


def _commit(reader: Any, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
    try:
        reader.commit(offsets, timeout_ms=_TIMEOUT_MS)
    except (kafka_errors.CommitFailedError, kafka_errors.UnknownMemberIdError):
        # another worker of the group was faster and has settled them: its members read what it committed
        missing = [tp for tp in offsets if reader.committed(tp, timeout_ms=_TIMEOUT_MS) is None]
        if missing:
            raise
