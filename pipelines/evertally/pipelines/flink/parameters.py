"""What the job's workers are told: public parameters alone, which travel in the job's graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.config import WorkerConfig
from evertally.pipelines.kafka.sealed_records import StreamSealer
from evertally.pipelines.kafka.source_config import EventFormat
from evertally.pipelines.kafka.topics import TopicNames
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["JobParameters", "check_supported"]


@dataclass(frozen=True, slots=True)
class JobParameters:
    """Public parameters of an aggregating job.

    Attributes:
        spec: the stream.
        source: form of the events.
        rule: how events find their tick, and when ticks close.
        other: the declared key that takes undeclared ones, None to refuse those.
        bound: bounds on a unit's contributions, None at event level.
        topics: names of the stream's topics.
        lanes: number of places in which ticks close; fixed for an incarnation, unlike the parallelism.
        shard_of: shard of each declared key.
        life, incarnation: which life of the stream this is.
        horizon: last tick that is paid for.
        keys_path: the aggregation keys, on every worker.
        dead_letter_hmac: whether a dead letter carries an HMAC of the payload.
        max_request_bytes: largest request to the broker.
    """

    spec: StreamSpec
    source: EventFormat
    rule: TickRule
    other: str | None
    bound: UnitBound | None
    topics: TopicNames
    lanes: int
    shard_of: tuple[int, ...]
    life: str
    incarnation: int
    horizon: int
    keys_path: Path
    dead_letter_hmac: bool
    max_request_bytes: int

    @classmethod
    def of(
        cls,
        config: WorkerConfig,
        life: str,
        incarnation: int,
        horizon: int,
        shard_of: Sequence[int],
        keys_path: Path,
    ) -> Self:
        """The parameters of an opened stream."""
        return cls(
            config.spec,
            config.source,
            config.rule,
            config.other,
            config.bound,
            config.topics,
            check_supported(config),
            tuple(shard_of),
            life,
            incarnation,
            horizon,
            keys_path,
            config.dead_letter_hmac,
            config.max_request_bytes,
        )

    def open_keys(self) -> AggregationKeys:
        """The keys of this life and incarnation. Raises IntegrityError for another one's."""
        keys = AggregationKeys.open(self.keys_path)
        if keys.incarnation != self.incarnation or not keys.stream_id.hex().startswith(self.life):
            raise IntegrityError("the aggregation keys belong to another incarnation of the stream")
        return keys

    def closings_sealer(self, keys: AggregationKeys) -> StreamSealer:
        """Seals closings for their topic."""
        return StreamSealer(keys.closing, self.topics.closed, keys.stream_id, keys.incarnation)

    def state_sealer(self, keys: AggregationKeys) -> Sealer:
        """Seals the job's state; a state of another number of lanes does not open."""
        return Sealer(keys.closing, f"flink-state/{self.lanes}/{self.spec.name}", keys.incarnation)


def check_supported(config: WorkerConfig) -> int:
    """The number of lanes. Raises InvalidParameter for what a Flink job does not do."""
    if config.closing_sources is None:
        raise InvalidParameter(
            "kafka.closing_sources", None, "the number of lanes of the Flink job, for example 4"
        )
    if config.select is not None:
        raise InvalidParameter(
            "select", "a table", "no such table on Flink: only the Kafka worker selects keys"
        )
    return config.closing_sources
