"""A stream as it travels in a graph, and as a worker process opens it: once, whatever steps it runs.

With the release step inside the pipeline workers hold the ledger and the key file. Where the job writes
closings for the releaser they hold neither, only the keys of aggregation.
"""

from __future__ import annotations

import hmac
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeVar, cast

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream
from evertally.errors import IntegrityError
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.beam.closings_topic import ClosingsLog, ClosingsTopic
from evertally.pipelines.beam.parts import PartSealer
from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.refs import KeyRef, LedgerRef
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.releaser import stored_positions
from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["AggregationHandle", "AggregationRef", "Handle", "StreamHandle", "StreamRef", "opened"]


class Handle(Protocol):
    """What every step needs of an opened stream, whoever releases it."""

    @property
    def spec(self) -> StreamSpec:
        """The declaration."""
        ...

    @property
    def sealer(self) -> PartSealer:
        """Seals what a runner sees."""
        ...

    @property
    def shard_of(self) -> tuple[int, ...]:
        """Shard of each declared key."""
        ...

    @property
    def life(self) -> str:
        """The public mark of this life of the stream."""
        ...

    @property
    def incarnation(self) -> int:
        """The running incarnation."""
        ...

    @property
    def horizon(self) -> int:
        """Last tick that was paid for when the stream was opened here."""
        ...

    def positions(self) -> tuple[int, bytes]:
        """Last tick that is durable, and the input positions behind it; (0, b"") before the first."""
        ...

    def head(self) -> int:
        """Last tick that is durable."""
        ...

    def secret(self, label: str) -> bytes:
        """A key of this incarnation, by label: "unit" or "dead-letter"."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


H_co = TypeVar("H_co", bound=Handle, covariant=True)


class _Ref(Hashable, Protocol[H_co]):
    def open(self) -> H_co: ...


@dataclass(frozen=True, slots=True)
class StreamRef:
    """All that the steps of a job know of their stream; public.

    Attributes:
        spec: the declaration.
        ledger: where the ledger is.
        key: where the key file is.
    """

    spec: StreamSpec
    ledger: LedgerRef
    key: KeyRef

    def open(self) -> StreamHandle:
        """See `StreamHandle`."""
        return StreamHandle(self)


@dataclass(frozen=True, slots=True)
class AggregationRef:
    """All that the steps of a job know that writes closings; public.

    Attributes:
        spec: the declaration.
        keys: where the keys of aggregation are.
        life, incarnation, horizon: of the stream.
        shard_of: shard of each declared key.
        topic: where the closings go.
    """

    spec: StreamSpec
    keys: KeyRef
    life: str
    incarnation: int
    horizon: int
    shard_of: tuple[int, ...]
    topic: ClosingsTopic

    def open(self) -> AggregationHandle:
        """See `AggregationHandle`."""
        return AggregationHandle(self)


class StreamHandle:
    """An opened stream in this process: ledger, secrets, places of its keys. It does not travel."""

    def __init__(self, ref: StreamRef) -> None:
        self.spec: Final = ref.spec
        self.store: Final[LedgerStore] = ref.ledger.open()
        try:
            self.key_file: Final[KeyFile] = ref.key.load()
            found = self.store.find_stream(ref.spec.name)
            self.opened: Final[OpenedStream] = found if found is not None else _begin(self.store, ref.spec)
            ref.spec.require_same(self.opened)
        except BaseException:
            self.store.close()
            raise
        place = (self.opened.name, self.opened.stream_id, self.opened.incarnation)
        self.sealer: Final = PartSealer(self.key_file.derive("closing", *place), ref.spec.name)
        self.shard_of: Final = tuple(index % self.opened.shards for index in self.opened.key_indices)

    @property
    def life(self) -> str:
        """See `Handle`."""
        return self.opened.stream_id[:8].hex()

    @property
    def incarnation(self) -> int:
        """See `Handle`."""
        return self.opened.incarnation

    @property
    def horizon(self) -> int:
        """See `Handle`."""
        return self.spec.paid_horizon(self.opened)

    def positions(self) -> tuple[int, bytes]:
        """See `Handle`: those of the ledger's last row."""
        return stored_positions(self.store, self.opened, self.key_file, 0)

    def head(self) -> int:
        """See `Handle`: the ledger's."""
        return self.store.head(self.opened.shard(0)).t

    def secret(self, label: str) -> bytes:
        """A key of this incarnation, by label."""
        opened = self.opened
        return self.key_file.derive(label, opened.name, opened.stream_id, opened.incarnation)

    def close(self) -> None:
        """Close the ledger."""
        self.store.close()

    def __repr__(self) -> str:
        return f"StreamHandle({self.spec.name!r}, <secrets redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an opened stream holds secrets and is not pickled")


class AggregationHandle:
    """A stream in this process without its ledger and its noise key. It does not travel.

    Raises IntegrityError for keys of another stream or incarnation.
    """

    def __init__(self, ref: AggregationRef) -> None:
        self.spec: Final = ref.spec
        self.horizon: Final = ref.horizon
        self.shard_of: Final = ref.shard_of
        self.keys: Final = AggregationKeys.open(ref.keys.path())
        if (self.life, self.incarnation) != (ref.life, ref.incarnation):
            raise IntegrityError("the aggregation keys belong to another incarnation of the stream")
        self.sealer: Final = PartSealer(self.keys.closing, ref.spec.name)
        self.log: Final = ClosingsLog(ref.topic, self.life, self.incarnation, self.sealer)

    @property
    def life(self) -> str:
        """See `Handle`."""
        return self.keys.stream_id[:8].hex()

    @property
    def incarnation(self) -> int:
        """See `Handle`."""
        return self.keys.incarnation

    def positions(self) -> tuple[int, bytes]:
        """See `Handle`: those that were committed with the last closing."""
        return self.log.positions()

    def head(self) -> int:
        """See `Handle`: the last closing's tick."""
        return self.log.head()

    @property
    def digest_key(self) -> bytes:
        """For digests of closings."""
        return hmac.digest(self.keys.closing, b"evertally/1/beam/digest", "sha256")

    def secret(self, label: str) -> bytes:
        """See `Handle`."""
        return {"unit": self.keys.unit, "dead-letter": self.keys.dead_letter}[label]

    def close(self) -> None:
        """Close the connection."""
        self.log.close()

    def __repr__(self) -> str:
        return f"AggregationHandle({self.spec.name!r}, <secrets redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an opened stream holds secrets and is not pickled")


def opened(ref: _Ref[H_co]) -> H_co:
    """The stream in this process, opened at the first call; the very first one anywhere pays its charge.

    Raises:
        BudgetExceeded: the scope does not admit the charge; nothing was drawn.
        InvalidParameter: a parameter differs from the running incarnation's.
    """
    return cast(H_co, _HANDLES.get(ref, ref.open))  # a reference opens as one kind of handle alone


def _begin(store: LedgerStore, spec: StreamSpec) -> OpenedStream:
    """Workers that start together pay once: the second one's request is a retry of the first."""
    store.create_scope(spec.scope)
    return store.open_stream(spec.record(), spec.first_charge())


_HANDLES: Final[PerProcess[Hashable, Handle]] = PerProcess()
