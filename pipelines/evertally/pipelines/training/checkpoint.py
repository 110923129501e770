"""Checkpoints: the private state from which a run resumes. Sealed, versioned, checksummed; no pickle.

A file is magic, version byte, lengths, sealed chunks and a SHA-256 over all of it. It becomes real by one
rename after an fsync; the two newest are kept. Nothing of a step leaves the run before the checkpoint that
holds it is durable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from evertally.durable import sync_folder
from evertally.errors import IntegrityError, StorageFull
from evertally.pipelines.sealing import Sealer

__all__ = ["Checkpoint", "CheckpointStore", "write_durably"]

_MAGIC: Final = b"evertally-checkpoint\n"
_VERSION: Final = 1
_CHUNK: Final = 1 << 28
_KEPT: Final = 2
_NAME: Final = re.compile(r"step-([0-9]{12})\.checkpoint", re.ASCII)
_SUM_BYTES: Final = 32


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint:
    """Where a run stands after `step` steps.

    Attributes:
        step: steps whose outputs it holds.
        facts: digests, attempts and the public records of steps that may not be published yet; JSON values.
        state: parameters, optimiser, coordinates and the private rows, encoded without pickle.
    """

    step: int
    facts: dict[str, Any]
    state: bytes

    def __repr__(self) -> str:
        return f"Checkpoint(step={self.step}, <private>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a checkpoint does not pickle; the store seals it")


class CheckpointStore:
    """The checkpoints of one run in one folder.

    Args:
        folder: made where it is not there, mode 0700.
        sealer: of the run.
        fsync: makes a descriptor durable.
    """

    def __init__(self, folder: Path, sealer: Sealer, *, fsync: Callable[[int], None] = os.fsync) -> None:
        self._folder: Final = folder
        self._sealer: Final = sealer
        self._fsync: Final = fsync
        folder.mkdir(mode=0o700, exist_ok=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint real; older ones but the last go.

        Raises:
            StorageFull: it could not be written; what was there is still there.
        """
        facts = json.dumps(checkpoint.facts, sort_keys=True).encode()
        plain = len(facts).to_bytes(8, "big") + facts + checkpoint.state
        starts = range(0, max(1, len(plain)), _CHUNK)
        sealed = [
            self._sealer.seal(plain[start : start + _CHUNK], part, checkpoint.step)
            for part, start in enumerate(starts)
        ]
        head = (
            _MAGIC + bytes([_VERSION]) + checkpoint.step.to_bytes(8, "big") + len(sealed).to_bytes(4, "big")
        )
        body = head + b"".join(len(part).to_bytes(8, "big") + part for part in sealed)
        path = self._folder / f"step-{checkpoint.step:012d}.checkpoint"
        write_durably(path, body + hashlib.sha256(body).digest(), fsync=self._fsync)
        for step in self.steps()[:-_KEPT]:
            (self._folder / f"step-{step:012d}.checkpoint").unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match is not None)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, None where the run has none.

        Raises:
            IntegrityError: its bytes are damaged, of another run, or of a version not known here. An older
                one is not taken in its place: steps after it may be published.
        """
        steps = self.steps()
        return self._load(steps[-1]) if steps else None

    def _load(self, step: int) -> Checkpoint:
        data = (self._folder / f"step-{step:012d}.checkpoint").read_bytes()
        body, sum_ = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != sum_:
            raise IntegrityError(f"the checkpoint of step {step} is damaged")
        position = len(_MAGIC)
        if len(body) < position + 13:
            raise IntegrityError(f"the checkpoint of step {step} is damaged")
        if body[position] != _VERSION:
            raise IntegrityError(
                f"the checkpoint of step {step} has version {body[position]}, not {_VERSION}"
            )
        if int.from_bytes(body[position + 1 : position + 9], "big") != step:
            raise IntegrityError(f"the checkpoint of step {step} is another step's under this name")
        parts, position = int.from_bytes(body[position + 9 : position + 13], "big"), position + 13
        plain = b""
        for part in range(parts):
            size = int.from_bytes(body[position : position + 8], "big")
            plain += self._sealer.open(body[position + 8 : position + 8 + size], part, step)
            position += 8 + size
        size = int.from_bytes(plain[:8], "big")
        try:
            facts = json.loads(plain[8 : 8 + size].decode())
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise IntegrityError(f"the checkpoint of step {step} is damaged")
        return Checkpoint(step, facts, plain[8 + size :])

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self._folder)!r}, <secret>)"


def write_durably(path: Path, data: bytes, *, fsync: Callable[[int], None] = os.fsync) -> None:
    """Replace a file, mode 0600, so that either the old or the whole new one is there after a power cut.

    Raises:
        StorageFull: it could not be written; the old file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageFull(f"{path.name} could not be written: {error.strerror}") from None
