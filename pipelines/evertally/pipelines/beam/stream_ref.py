"""A stream as it travels in a graph, and as a worker process opens it: once, whatever steps it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NoReturn

from evertally.accountants.budget.ledger import LedgerStore, OpenedStream
from evertally.pipelines.beam.parts import PartSealer
from evertally.pipelines.beam.per_process import PerProcess
from evertally.pipelines.beam.refs import KeyRef, LedgerRef
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.stream_spec import StreamSpec

__all__ = ["StreamHandle", "StreamRef", "opened"]


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


def opened(ref: StreamRef) -> StreamHandle:
    """The stream in this process, opened at the first call; the very first one anywhere pays its charge.

    Raises:
        BudgetExceeded: the scope does not admit the charge; nothing was drawn.
        InvalidParameter: a parameter differs from the running incarnation's.
    """
    return _HANDLES.get(ref, lambda: StreamHandle(ref))


def _begin(store: LedgerStore, spec: StreamSpec) -> OpenedStream:
    """Workers that start together pay once: the second one's request is a retry of the first."""
    store.create_scope(spec.scope)
    return store.open_stream(spec.record(), replace(spec.charge(), idempotency_key=f"first-{spec.name}"))


_HANDLES: Final[PerProcess[StreamRef, StreamHandle]] = PerProcess()
