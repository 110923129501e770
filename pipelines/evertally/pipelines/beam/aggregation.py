"""Opening a stream for a job that writes closings: on a host that may see the ledger and the key file."""

from __future__ import annotations

from dataclasses import replace

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.beam.closings_topic import ClosingsLog, ClosingsTopic
from evertally.pipelines.beam.refs import KeyRef, without_password
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamHandle, StreamRef

__all__ = ["aggregation_of", "closed_through"]


def aggregation_of(stream: StreamRef, topic: ClosingsTopic, keys: KeyRef | None) -> AggregationRef:
    """Open the stream (its one charge at the first call) and write the keys of aggregation for the workers.

    Args:
        stream: the stream, as this host reaches it.
        topic: where its closings go.
        keys: where workers find the keys; None for where they are written, beside the key file.

    Raises:
        InvalidParameter: several shards; a changed parameter.
        IntegrityError: the ledger is ahead of the closings: ticks were released without them.
        BudgetExceeded: the scope does not admit the charge.
        ServiceUnavailable: no ledger, or no cluster.
    """
    if stream.spec.shards != 1:
        raise InvalidParameter("shards", stream.spec.shards, "1 for a live input in Beam")
    handle = StreamHandle(stream)
    try:
        through = closed_through(handle, topic)
        if handle.head() > through:
            raise IntegrityError(
                f"the ledger is at tick {handle.head()}, the closings end at {through}: the stream was "
                "counted another way, or its closings are gone; going on would count events again"
            )
        written = AggregationKeys.beside(stream.key.path())
        AggregationKeys.derive(handle.key_file, handle.opened).write(written)
        return AggregationRef(
            stream.spec,
            keys or KeyRef(str(written.absolute())),
            handle.life,
            handle.incarnation,
            handle.horizon,
            handle.shard_of,
            replace(topic, broker=without_password(topic.broker)),
        )
    finally:
        handle.close()


def closed_through(handle: StreamHandle, topic: ClosingsTopic) -> int:
    """Last tick that has a closing; 0 before the first."""
    log = ClosingsLog(topic, handle.life, handle.incarnation, handle.sealer)
    try:
        return log.positions()[0]
    finally:
        log.close()
