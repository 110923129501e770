"""What every stage of a worker shares: the opened stream, its secrets, the places of its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream
from evertally.accountants.budget.opening import open_ledger
from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.kafka.config import WorkerConfig
from evertally.pipelines.kafka.sealed_records import StreamSealer
from evertally.pipelines.kafka.topics import Partitions
from evertally.pipelines.kafka.worker_metrics import WorkerMetrics
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import stored_positions

__all__ = ["StreamContext", "open_new_incarnation"]


@dataclass(frozen=True, slots=True, repr=False)
class StreamContext:
    """An opened stream.

    Attributes:
        config: the worker's declaration.
        store: the ledger.
        key_file: the master secret.
        opened: the running incarnation.
        partitions: numbers of partitions of the input and of the units topic.
        metrics: what the stages tell the operators' plane.
    """

    config: WorkerConfig
    store: LedgerStore
    key_file: KeyFile
    opened: OpenedStream
    partitions: Partitions
    metrics: WorkerMetrics = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", WorkerMetrics(self.opened.name))

    @classmethod
    def open(
        cls, config: WorkerConfig, partitions: Partitions, *, begun: bool, may_begin: bool
    ) -> StreamContext:
        """Open the stream, or create it with its one charge at the very first start.

        Raises:
            InvalidParameter: a first start without saying where to begin; a changed parameter; the key file
                of a stream that has begun is not there.
            IntegrityError: the topics know the stream and the ledger does not; another stream's key file.
            BudgetExceeded: the scope does not admit the charge.
        """
        store = open_ledger(config.ledger, key_file=config.chain_key_file)
        try:
            opened = store.find_stream(config.spec.name)
            if opened is None and begun:
                raise IntegrityError(
                    f"the topics hold closings or releases of {config.spec.name!r}, but the ledger does "
                    "not know it: was the ledger replaced? Starting anew would count without its history"
                )
            if opened is None and not may_begin:
                raise InvalidParameter("--from", "nothing", "earliest, latest or a time at the first start")
            if opened is None:
                opened = _create(config, store)
            config.spec.require_same(opened)
            key_file = KeyFile.open(config.key_file)
            for shard in range(opened.shards):  # what is sealed under another key could never be released
                stored_positions(store, opened, key_file, shard)
            if config.select is not None:  # a later start repeats the request and pays nothing
                store.charge(config.select.charge(config.spec, opened.incarnation))
            return cls(config, store, key_file, opened, partitions)
        except BaseException:
            store.close()
            raise

    @property
    def closing_sources(self) -> int:
        """How many sources send closings: by default the partitions of the input, or of the units topic."""
        return self.config.closing_sources or self.partitions.units or self.partitions.events

    @property
    def life(self) -> str:
        """The public mark of this life of the stream on its topics."""
        return self.sealer(self.config.topics.closed).life

    def sealer(self, topic: str) -> StreamSealer:
        """Seals the records of one topic."""
        return StreamSealer(self.secret("closing"), topic, self.opened.stream_id, self.opened.incarnation)

    def secret(self, label: str) -> bytes:
        """A key of this incarnation, by label."""
        opened = self.opened
        return self.key_file.derive(label, opened.name, opened.stream_id, opened.incarnation)

    def shard_of(self) -> list[int]:
        """Shard of each declared key, by its index in the ledger."""
        return [index % self.opened.shards for index in self.opened.key_indices]

    def __repr__(self) -> str:
        return f"StreamContext({self.opened.name!r}, <secrets redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream's secrets are not pickled")


def _create(config: WorkerConfig, store: LedgerStore) -> OpenedStream:
    """Workers that start together pay once: the second one's request is a retry of the first."""
    KeyFile.open_or_create(config.key_file)
    store.create_scope(config.spec.scope)
    return store.open_stream(config.spec.record(), config.spec.first_charge())


def open_new_incarnation(config: WorkerConfig) -> int:
    """Pay for a new incarnation of a stream that exists; its totals begin at 0. Returns its number.

    Raises InvalidParameter where there is no stream yet, BudgetExceeded where the scope does not admit it.
    """
    store = open_ledger(config.ledger, key_file=config.chain_key_file, create=False)
    try:
        if store.find_stream(config.spec.name) is None:
            raise InvalidParameter("stream.name", config.spec.name, "a stream that has begun")
        KeyFile.open_or_create(config.key_file)  # a lost key file is a reason for a new incarnation
        return store.open_stream(config.spec.record(), config.spec.charge()).incarnation
    finally:
        store.close()
