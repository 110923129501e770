"""Where a job publishes: a file or a topic, as they travel in a graph. Both are fed from the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.kafka.broker import Broker, TopicPartition
from evertally.pipelines.kafka.release_sink import TopicSink
from evertally.pipelines.kafka.transactions import OffsetText, Transactions
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.sinks import FileSink, Sink

__all__ = ["FileSinkRef", "SinkRef", "TopicSinkRef"]

_TRANSACTION_TIMEOUT_MS: Final = 15_000


class SinkRef(Protocol):
    """A sink's place."""

    def open(self, header: StreamHeader, shard: int, shards: int) -> Sink:
        """The sink in this process."""
        ...


@dataclass(frozen=True, slots=True)
class FileSinkRef:
    """A file of JSON lines on a disk of the worker; with several shards each has a file, PATH.SHARD."""

    path: str

    def open(self, header: StreamHeader, shard: int, shards: int) -> Sink:
        """See `SinkRef`."""
        return FileSink(Path(self.path if shards == 1 else f"{self.path}.{shard}"), header.encode())


@dataclass(frozen=True, slots=True)
class TopicSinkRef:
    """The releases topic of a stream; the broker without its password."""

    broker: Broker
    topic: str
    prefix: str
    max_request_bytes: int = 1_000_000

    def open(self, header: StreamHeader, shard: int, shards: int) -> Sink:  # noqa: ARG002 - partition is shard
        """See `SinkRef`. The producer fences every older one of the shard, the Kafka worker's included."""
        broker = with_password(self.broker)
        transactions = Transactions(
            broker,
            f"{self.prefix}.release.{shard}",
            timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_bytes=self.max_request_bytes,
        )
        transactions.begin_epoch()
        place = TopicPartition(self.topic, shard)
        return TopicSink(broker, place, header, transactions, _no_offsets)


def _no_offsets() -> tuple[Mapping[TopicPartition, OffsetText], None]:
    """Positions are sealed in the ledger; no consumer group has any."""
    return {}, None
