"""The closings topic as a Beam job writes it: sealed sums and the input positions behind them, as one.

A Kafka transaction makes both visible or neither. The positions travel as the text of a group's offsets,
sealed; a new job goes on behind them. No member ever joins that group.
"""

from __future__ import annotations

import base64
import logging
import threading
from dataclasses import dataclass
from typing import Any, Final

from evertally.errors import IntegrityError
from evertally.pipelines.beam.parts import PartSealer
from evertally.pipelines.beam.positions import Cuts
from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import Broker, TopicPartition, translated
from evertally.pipelines.kafka.transactions import OffsetText

__all__ = ["POSITIONS_MAX", "ClosingsLog", "ClosingsTopic"]

_TIMEOUT_MS: Final = 60_000
_TRIES: Final = 5
POSITIONS_MAX: Final = 300
"""Ends of ticks a text may hold for each partition: brokers take texts up to 4 KiB."""


@dataclass(frozen=True, slots=True)
class ClosingsTopic:
    """Where sealed closings go; public.

    Attributes:
        broker: the cluster, without a password.
        prefix: what the names of the stream's own topics and groups begin with.
        events: the Kafka input and its number of partitions; None for another input.
        max_request_bytes: largest request to the broker.
    """

    broker: Broker
    prefix: str
    events: tuple[str, int] | None = None
    max_request_bytes: int = 1_000_000

    @property
    def name(self) -> str:
        """The topic's name, as `kafka.topics.TopicNames` has it."""
        return f"{self.prefix}.closed"

    @property
    def group(self) -> str:
        """The group whose offsets hold the positions."""
        return f"{self.prefix}.beam"

    @property
    def places(self) -> list[TopicPartition]:
        """The partitions whose offsets hold them."""
        topic, count = self.events or (self.name, 1)
        return [TopicPartition(topic, number) for number in range(count)]


class ClosingsLog:
    """Reads and writes down how far a job's closings are. All methods may be called from many threads."""

    def __init__(self, topic: ClosingsTopic, life: str, incarnation: int, sealer: PartSealer) -> None:
        self._topic: Final = topic
        self._life: Final = life
        self._incarnation: Final = incarnation
        self._sealer: Final = sealer
        self._lock: Final = threading.Lock()
        self._reader: Final[Any] = with_password(topic.broker).group_reader(topic.group)
        logging.getLogger("kafka.coordinator.consumer").addFilter(_told_already)

    def head(self) -> int:
        """Last tick whose closing is committed."""
        return self._read(self._topic.places[0])[0]

    def positions(self) -> tuple[int, bytes]:
        """Last tick whose closing is committed, and the positions behind it; (0, b"") before the first.

        Raises IntegrityError where the group's offsets are another program's, or contradict each other.
        """
        for _ in range(_TRIES):  # a commit may come between two reads
            found = [self._read(place) for place in self._topic.places]
            if len({through for through, _ in found}) == 1:
                break
        else:
            raise IntegrityError("the committed positions of a Beam job contradict each other")
        through = found[0][0]
        if through == 0:
            return 0, b""
        if self._topic.events is None:
            return through, found[0][1]
        stops = [Cuts.decode(body).stops[0] for _, body in found]
        return through, Cuts(through, tuple(stops)).encode()

    def offsets(self, through: int, positions: bytes) -> dict[TopicPartition, OffsetText]:
        """What is to be committed with the closing of tick `through`."""
        places = self._topic.places
        if self._topic.events is None:
            return {places[0]: OffsetText(through, self._text(places[0], through, positions))}
        stops = Cuts.decode(positions).stops
        return {
            place: OffsetText(own[-1], self._text(place, through, Cuts(through, (own,)).encode()))
            for place, own in zip(places, stops, strict=True)
        }

    def close(self) -> None:
        """Close the connection."""
        self._reader.close(autocommit=False)

    def _text(self, place: TopicPartition, through: int, positions: bytes) -> str:
        what = _what(place, through)
        sealed = base64.urlsafe_b64encode(self._sealer.seal_bytes(positions, what)).decode()
        return f"{OpenTick(self._life, self._incarnation, through + 1).encode()} {sealed}"

    def _read(self, place: TopicPartition) -> tuple[int, bytes]:
        with self._lock, translated():
            held = self._reader.committed(place, metadata=True, timeout_ms=_TIMEOUT_MS)
        if held is None:
            return 0, b""
        words = held.metadata.split(" ")
        open_tick = OpenTick.decode(" ".join(words[:4])).within(self._life, self._incarnation)
        if open_tick == 1:
            return 0, b""
        try:
            sealed = base64.urlsafe_b64decode(words[4])
        except (IndexError, ValueError):
            raise IntegrityError("the group's committed offsets were written by another program") from None
        return open_tick - 1, self._sealer.open_bytes(sealed, _what(place, open_tick - 1))


def _what(place: TopicPartition, through: int) -> bytes:
    """Positions open in their own partition, behind the tick that stands before them in clear."""
    return f"positions/{place.partition}/{through}".encode()


def _told_already(record: logging.LogRecord) -> bool:
    """kafka-python tells as an error that offsets wait for a transaction's end, and asks again by itself."""
    return "UnstableOffsetCommitError" not in record.getMessage()
