"""What a run must remember before its first checkpoint: its random id, its lease and its attempt.

An attempt is part of the noise's key. A fresh one is durable before anything is drawn under it, and none is
ever used for two different computations.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from evertally.errors import Fenced, IntegrityError, InvalidParameter
from evertally.pipelines.training.checkpoint import write_durably

__all__ = ["RunFolder", "RunState"]

_STATE: Final = "run.json"
_VERSION: Final = "evertally.run/1"


@dataclass(frozen=True, slots=True)
class RunState:
    """Attributes.

    run_id: 32 hexadecimal digits, drawn when the folder is made; with it a deleted folder and a kept key
        file can never draw the same noise over other data.
    plan: digest of the plan.
    manifest: keyed digest of the manifest.
    generation: which reservation; raised where one lapsed before anything was drawn.
    lease_id: the lease, "" before one is held.
    attempt: incarnation of the noise key.
    environment: what decides whether a step can be computed again to the same bits.
    """

    run_id: str
    plan: str = ""
    manifest: str = ""
    generation: int = 0
    lease_id: str = ""
    attempt: int = 0
    environment: str = ""


class RunFolder:
    """One run's folder, held by one process."""

    def __init__(self, folder: Path) -> None:
        """Make or open the folder and lock it.

        Raises:
            InvalidParameter: it cannot be made.
            Fenced: another process holds it.
        """
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidParameter(
                "run.folder", str(folder), f"a folder that can be used ({error.strerror})"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Fenced(f"another process trains in {folder.name}") from None
        self.path: Final = folder

    def state(self) -> RunState:
        """The stored state, or a new one with a fresh random id, durable before it is returned.

        Raises:
            IntegrityError: it is damaged, or lost from a folder that has checkpoints.
        """
        path = self.path / _STATE
        if not path.exists():
            if any(self.path.glob("checkpoints/*.checkpoint")):
                raise IntegrityError(f"{self.path.name} has checkpoints but no {_STATE}")
            return self.save(RunState(os.urandom(16).hex()))
        try:
            said = json.loads(path.read_text("utf-8"))
            fields = {key: value for key, value in dict(said).items() if key not in ("version", "sum")}
            state = RunState(**fields)
            if said["version"] != _VERSION or said["sum"] != _checksum(state):
                raise IntegrityError(f"{_STATE} is damaged or of another version")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise IntegrityError(f"{_STATE} is damaged") from None
        return state

    def save(self, state: RunState) -> RunState:
        """Make a state durable."""
        said = {"version": _VERSION, **asdict(state), "sum": _checksum(state)}
        write_durably(self.path / _STATE, json.dumps(said, indent=1).encode())
        return state

    def fresh_attempt(self, state: RunState, environment: str) -> RunState:
        """The next attempt, durable before anything can be drawn under it."""
        return self.save(replace(state, attempt=state.attempt + 1, environment=environment))

    def close(self) -> None:
        """Give the folder free; again is a no-op."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _checksum(state: RunState) -> str:
    return hashlib.sha256(json.dumps(asdict(state), sort_keys=True).encode()).hexdigest()[:16]
