"""Examples from a file: NumPy arrays (.npz, never pickled), CSV with a header, or JSON lines."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.dead_letters import DeadLetterFile, Reason
from evertally.pipelines.json_values import decode_json
from evertally.pipelines.local.lines import MAX_LINE_BYTES, LineReader
from evertally.pipelines.training.examples import ExampleBlock, ExampleForm, Range

__all__ = ["FILE_FORMATS", "FileExamples", "load_arrays"]

FILE_FORMATS: Final = ("npz", "csv", "jsonl")
_BLOCK: Final = 4096
_READ_BYTES: Final = 1 << 20


class FileExamples:
    """Examples of one file.

    Args:
        path: the file; .gz is read through for CSV and JSON lines.
        file_format: one of FILE_FORMATS.
        form: the declared form.
        refused: the operators' list of records that are no examples.
    """

    def __init__(self, path: Path, file_format: str, form: ExampleForm, refused: Path) -> None:
        self._path: Final = path
        self._format: Final = file_format
        self._form: Final = form
        self._refused: Final = refused

    def freeze(self) -> tuple[Range, ...]:
        """See `ExampleSource`."""
        records = sum(len(block) for block in self._blocks())
        return (Range(self._path.name, 0, records, records, self._digest()),)

    def read(self, ranges: tuple[Range, ...]) -> Iterator[ExampleBlock]:
        """See `ExampleSource`."""
        (frozen,) = ranges
        records = 0
        for block in self._blocks():
            records += len(block)
            yield block
        if records != frozen.records or self._digest() != frozen.digest:
            raise IntegrityError(f"{self._path.name} is another file than the one this run has paid for")

    def describe(self) -> dict[str, object]:
        """See `ExampleSource`."""
        return {"format": self._format, "path": self._path.name}

    def _digest(self) -> str:
        digest = hashlib.sha256()
        with _opened(self._path) as file:
            while part := file.read(_READ_BYTES):
                digest.update(part)
        return digest.hexdigest()

    def _blocks(self) -> Iterator[ExampleBlock]:
        return self._arrays() if self._format == "npz" else self._lines()

    def _arrays(self) -> Iterator[ExampleBlock]:
        features, labels, units = load_arrays(self._path, self._form)
        for first in range(0, len(labels), _BLOCK):
            part = slice(first, min(first + _BLOCK, len(labels)))
            rows = range(part.start, part.stop)
            names = [b"%d" % row for row in rows]
            own = names if units is None else [_unit(unit) for unit in units[part].tolist()]
            yield _finite(ExampleBlock(features[part], labels[part], own, names), self._form)

    def _lines(self) -> Iterator[ExampleBlock]:
        reader = LineReader(str(self._path))
        header: list[str] | None = None
        with DeadLetterFile(self._refused) as refused:
            for block in reader.blocks():
                found: list[tuple[NDArray[Any], float, bytes, bytes]] = []
                for row, line in enumerate(block.lines):
                    if not line.strip():
                        continue
                    if self._format == "csv" and header is None:
                        header = _header(line, self._form)
                        continue
                    number, offset = block.position(row)
                    record = _object(line) if header is None else _record(line, header)
                    read = record if isinstance(record, Reason) else self._form.read(record)
                    if isinstance(read, Reason):
                        refused.write(number, offset, read)
                    else:
                        name = b"%d" % number
                        found.append((*read[:2], read[2] if self._form.unit else name, name))
                if found:
                    yield _block(found, self._form)


def load_arrays(path: Path, form: ExampleForm) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Features, labels and units (None at event level) of a .npz file, in the declared form.

    Raises:
        InvalidParameter: no such file or array, pickled objects, or another shape, type or range.
    """
    names = [form.features[0], form.label, *([form.unit] if form.unit else [])]
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise InvalidParameter(
                    "data", f"no array {missing[0]}", f"arrays {', '.join(names)} in the file"
                )
            arrays = [file[name] for name in names]
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, InvalidParameter):
            raise
        raise InvalidParameter(
            "data.path", str(path), "a readable .npz file without pickled objects"
        ) from None
    features, labels = arrays[0], arrays[1]
    if features.shape[1:] != form.shape or features.dtype.kind not in ("iub" if form.tokens else "iufb"):
        expected = f"shape (n, {', '.join(map(str, form.shape))}) of {form.feature_type.__name__}"
        raise InvalidParameter("data.features", f"{features.dtype} of another shape", expected)
    if labels.shape != features.shape[:1] or labels.dtype.kind not in ("iu" if form.classes else "iuf"):
        raise InvalidParameter(
            "data.label", f"{labels.dtype}", f"one {form.label_type.__name__} for each example"
        )
    if form.unit and (arrays[2].shape != labels.shape or arrays[2].dtype.kind not in "iuSU"):
        raise InvalidParameter("data.unit", f"{arrays[2].dtype}", "one integer or text for each example")
    return (
        features.astype(form.feature_type, copy=False),
        labels.astype(form.label_type, copy=False),
        arrays[2] if form.unit else None,
    )


def _finite(block: ExampleBlock, form: ExampleForm) -> ExampleBlock:
    """The block without examples outside the declared form; an array file has no lines to refuse."""
    flat = block.features.reshape(len(block), -1)
    good = ((flat >= 0) & (flat < form.tokens)).all(axis=1) if form.tokens else np.isfinite(flat).all(axis=1)
    if form.classes:
        good &= (block.labels >= 0) & (block.labels < form.classes)
    else:
        good &= np.isfinite(block.labels)
    good &= np.array([unit != b"" for unit in block.units], np.bool_)
    if good.all():
        return block
    rows = np.flatnonzero(good).tolist()
    return ExampleBlock(
        block.features[good],
        block.labels[good],
        [block.units[row] for row in rows],
        [block.records[row] for row in rows],
    )


def _unit(value: int | str | bytes) -> bytes:
    """A unit's name as bytes; none where there is no name, as in a record without the field."""
    return str(value).encode("utf-8", "surrogatepass") if value != b"" else b""


def _block(found: list[tuple[NDArray[Any], float, bytes, bytes]], form: ExampleForm) -> ExampleBlock:
    features, labels, units, records = zip(*found, strict=True)
    return ExampleBlock(
        np.stack(features), np.array(labels).astype(form.label_type), list(units), list(records)
    )


def _header(line: bytes, form: ExampleForm) -> list[str]:
    record = _record(line.removeprefix(b"\xef\xbb\xbf"), None)
    names = [] if isinstance(record, Reason) else [str(name) for name in record.values()]
    for name in (*form.features, form.label, *([form.unit] if form.unit else [])):
        if names.count(name) != 1:
            raise InvalidParameter("data", f"no column {name}", "each declared column once in the first line")
    return names


def _record(line: bytes, header: list[str] | None) -> dict[str, Any] | Reason:
    if len(line) > MAX_LINE_BYTES:
        return Reason.LINE_TOO_LONG
    try:
        fields = next(csv.reader(io.StringIO(line.decode()), strict=True), [])
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except csv.Error:
        return Reason.MALFORMED
    if header is not None and len(fields) != len(header):
        return Reason.WRONG_COLUMN_COUNT
    return dict(zip(header or map(str, range(len(fields))), fields, strict=True))


def _object(line: bytes) -> dict[str, Any] | Reason:
    return Reason.LINE_TOO_LONG if len(line) > MAX_LINE_BYTES else decode_json([line])[0]


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidParameter("data.path", str(path), f"a readable file ({error.strerror})") from None
