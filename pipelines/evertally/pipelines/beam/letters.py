"""Dead letters of a job to its topic. Operators' plane: after a restart a letter may be there twice."""

from __future__ import annotations

import uuid
from typing import Any, Final

import apache_beam as beam

from evertally.pipelines.beam.refs import with_password
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.kafka.topics import TopicNames
from evertally.pipelines.kafka.transactions import Outgoing, Transactions

__all__ = ["WriteDeadLetters"]

_TIMEOUT_MS: Final = 15_000
_REQUEST_BYTES: Final = 1_000_000


class _Write(beam.DoFn):
    def __init__(self, broker: Broker, topics: TopicNames) -> None:
        self._broker = broker
        self._topics = topics
        self._letters: list[bytes] = []
        self._transactions: Transactions | None = None

    def start_bundle(self) -> None:
        self._letters = []

    def process(self, element: bytes) -> None:
        self._letters.append(element)

    def finish_bundle(self) -> None:
        if not self._letters:
            return
        if self._transactions is None:
            name = f"{self._topics.prefix}.beam.dead-letters.{uuid.uuid4().hex}"
            self._transactions = Transactions(
                with_password(self._broker), name, timeout_ms=_TIMEOUT_MS, max_request_bytes=_REQUEST_BYTES
            )
        if self._transactions.broken:
            self._transactions.begin_epoch()
        topic = self._topics.dead_letters
        self._transactions.run([Outgoing(topic, 0, None, letter) for letter in self._letters])
        self._letters = []

    def teardown(self) -> None:
        if self._transactions is not None:
            self._transactions.close()


class WriteDeadLetters(beam.PTransform[Any, Any]):
    """Bytes to the dead-letter topic of a stream, a bundle in one transaction."""

    def __init__(self, broker: Broker, topics: TopicNames) -> None:
        super().__init__()
        self._broker = broker
        self._topics = topics

    def expand(self, letters: Any) -> Any:
        """See the class."""
        return letters | "Write" >> beam.ParDo(_Write(self._broker, self._topics))
