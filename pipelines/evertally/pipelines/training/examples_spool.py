"""Examples on disk by bin, sealed: each step of a run reads one bin, whatever order they came in.

A bin's file holds its examples in an order that depends on the run's secret and the records alone, so a
batch is the same however often, and in whatever order, the source was read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evertally.durable import sync_file, sync_folder
from evertally.errors import IntegrityError, StorageFull
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.allocation import Allocation
from evertally.pipelines.training.examples import ExampleBlock, ExampleForm

__all__ = ["Batch", "ExampleSpool"]

_BUFFER_EXAMPLES: Final = 1 << 15
_INDEX: Final = "index.sealed"
_LENGTH_BYTES: Final = 8


class Batch(NamedTuple):
    """The examples of one bin, unit by unit; as sensitive as the source.

    Attributes:
        features: shape (n, ...).
        labels: shape (n,).
        units: where each unit's examples end, ascending; n of them at event level.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    units: NDArray[np.int64]

    def __repr__(self) -> str:
        return "Batch(<redacted>)"


class ExampleSpool:
    """Sealed bins in one folder, mode 0700.

    Args:
        folder: made here; removed by `remove`.
        sealer: of the run.
        allocation: the run's bins.
        form: form of the examples.
        records_per_unit: at most so many records of a unit are kept, chosen by its own records alone.
    """

    def __init__(
        self, folder: Path, sealer: Sealer, allocation: Allocation, form: ExampleForm, records_per_unit: int
    ) -> None:
        self._folder: Final = folder
        self._sealer: Final = sealer
        self._allocation: Final = allocation
        self._form: Final = form
        self._records_per_unit: Final = records_per_unit
        self._segments: list[int] | None = None

    def is_complete(self, manifest_digest: str) -> bool:
        """Whether the folder holds every bin of this manifest."""
        try:
            sealed = (self._folder / _INDEX).read_bytes()
        except OSError:
            return False
        try:
            said = json.loads(self._sealer.open(sealed, self._allocation.batches, 0))
            self._segments, manifest = [int(count) for count in said["segments"]], said["manifest"]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise IntegrityError("the index of the spool is damaged") from None
        return bool(manifest == manifest_digest and len(self._segments) == self._allocation.batches)

    def write(self, blocks: Iterable[ExampleBlock], manifest_digest: str) -> None:
        """Fill the bins from a source; complete only after its verified end.

        Raises:
            StorageFull: the disk is full; the folder is not complete.
        """
        try:
            self.remove()
            self._folder.mkdir(mode=0o700)
            segments = [0] * self._allocation.batches
            waiting: dict[int, list[_Example]] = defaultdict(list)
            held = 0
            for block in blocks:
                for row, unit in enumerate(block.units):
                    example = _Example(unit, block.records[row], block.features[row], block.labels[row])
                    waiting[self._allocation.bin_of(unit)].append(example)
                held += len(block)
                if held >= _BUFFER_EXAMPLES:
                    self._flush(waiting, segments)
                    held = 0
            self._flush(waiting, segments)
            for number in range(self._allocation.batches):
                if segments[number]:  # no index before all that it speaks of
                    sync_file(self._path(number))
            index = json.dumps({"manifest": manifest_digest, "segments": segments}).encode()
            _write(self._folder / _INDEX, self._sealer.seal(index, self._allocation.batches, 0))
            sync_folder(self._folder)
        except OSError as error:
            raise StorageFull(f"examples could not be spooled: {error.strerror}") from None
        self._segments = segments

    def batch(self, number: int) -> Batch:
        """The examples of one bin; none at all is a batch of shape (0, ...).

        Raises:
            IntegrityError: the bin's file is not what was written.
        """
        examples = sorted(self._read(number), key=lambda e: self._allocation.order_of(e.unit, e.record))
        by_unit: dict[bytes, list[_Example]] = defaultdict(list)
        for example in examples:
            if len(by_unit[example.unit]) < self._records_per_unit:
                by_unit[example.unit].append(example)
        kept = [example for unit in by_unit.values() for example in unit]
        ends = np.cumsum([len(unit) for unit in by_unit.values()], dtype=np.int64)
        if not kept:
            features = np.zeros((0, *self._form.shape), self._form.feature_type)
            return Batch(features, np.zeros(0, self._form.label_type), ends)
        return Batch(np.stack([e.features for e in kept]), np.array([e.label for e in kept]), ends)

    def remove(self) -> None:
        """Delete the bins."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _flush(self, waiting: dict[int, list[_Example]], segments: list[int]) -> None:
        for number, examples in waiting.items():
            sealed = self._sealer.seal(_pack(examples), number, segments[number])
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with os.fdopen(os.open(self._path(number), flags, 0o600), "ab") as file:
                file.write(len(sealed).to_bytes(_LENGTH_BYTES, "big") + sealed)
            segments[number] += 1
        waiting.clear()

    def _read(self, number: int) -> Iterator[_Example]:
        if self._segments is None:
            raise IntegrityError("the spool of examples is not complete")
        expected = self._segments[number]
        if expected == 0:
            return
        try:
            data = self._path(number).read_bytes()
        except OSError:
            raise IntegrityError("a bin of the spool is missing") from None
        position = 0
        for segment in range(expected):
            size = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
            position += _LENGTH_BYTES
            yield from _unpack(
                self._sealer.open(data[position : position + size], number, segment), self._form
            )
            position += size

    def _path(self, number: int) -> Path:
        return self._folder / f"bin-{number:06d}.sealed"


class _Example(NamedTuple):
    unit: bytes
    record: bytes
    features: NDArray[Any]
    label: Any


def _pack(examples: list[_Example]) -> bytes:
    names = [len(name).to_bytes(4, "big") + name for e in examples for name in (e.unit, e.record)]
    head = b"".join(names)
    features = np.stack([example.features for example in examples])
    labels = np.array([example.label for example in examples])
    parts = (head, features.tobytes(), labels.tobytes())
    return len(examples).to_bytes(8, "big") + b"".join(len(p).to_bytes(8, "big") + p for p in parts)


def _unpack(data: bytes, form: ExampleForm) -> Iterator[_Example]:
    count, position, parts = int.from_bytes(data[:8], "big"), 8, []
    for _ in range(3):
        size = int.from_bytes(data[position : position + 8], "big")
        parts.append(data[position + 8 : position + 8 + size])
        position += 8 + size
    try:
        features = np.frombuffer(parts[1], form.feature_type).reshape(count, *form.shape)
        labels = np.frombuffer(parts[2], form.label_type).reshape(count)
    except ValueError:  # NumPy refuses a buffer of another length
        raise IntegrityError("a bin of the spool is damaged") from None
    names, place = [], 0
    for _ in range(2 * count):
        size = int.from_bytes(parts[0][place : place + 4], "big")
        names.append(parts[0][place + 4 : place + 4 + size])
        place += 4 + size
    for row in range(count):
        yield _Example(names[2 * row], names[2 * row + 1], features[row], labels[row])


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
