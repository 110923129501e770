"""What a run publishes: one line a step, and the model. Append-only, and only what is durable already.

A line holds the step and a digest of the parameters after it, a function of published rows. A model is a
safetensors file without any state of the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from evertally.durable import sync_folder
from evertally.errors import IntegrityError, StorageFull
from evertally.pipelines.training.checkpoint import write_durably

__all__ = ["Publisher"]

_STEPS: Final = "steps.jsonl"


class Publisher:
    """The public side of a run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._path: Final = folder / _STEPS

    def published(self) -> list[dict[str, Any]]:
        """The published steps in order; a torn last line counts for nothing.

        Raises:
            IntegrityError: a line is not the next step.
        """
        return _steps(self._whole())

    def publish(self, steps: Sequence[dict[str, Any]]) -> None:
        """Append steps that a durable checkpoint holds. Those that are published are compared, not repeated.

        They are written to the place where they belong, and no whole line is cut: a run that was stopped here
        and fenced meanwhile would otherwise repeat, or take away, what its successor has published.

        Raises:
            IntegrityError: a published step had another outcome, or a step is left out.
            StorageFull: it could not be written.
        """
        whole = self._whole()
        known = _steps(whole)
        for line in steps:
            if line["step"] < len(known) and known[line["step"]] != line:
                raise IntegrityError(f"step {line['step']} was published with another outcome")
        fresh = [line for line in steps if line["step"] >= len(known)]
        if fresh and fresh[0]["step"] != len(known):
            raise IntegrityError(f"steps from {len(known)} on are missing from what is to be published")
        data = b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in fresh)
        try:
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
                file.seek(len(whole))
                file.write(data)
                end = file.tell()
                if file.readline(1) not in (b"", b"{"):  # the rest of a longer line that was torn
                    file.truncate(end)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._folder)
        except OSError as error:
            raise StorageFull(f"{_STEPS} could not be written: {error.strerror}") from None

    def _whole(self) -> bytes:
        """The file up to its last whole line."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def publish_model(self, name: str, data: bytes) -> Path:
        """Write a model once. Raises IntegrityError where another one stands under this name."""
        path = self._folder / name
        if path.exists():
            if path.read_bytes() != data:
                raise IntegrityError(f"{name} was published with other parameters")
            return path
        write_durably(path, data)
        path.chmod(0o644)
        return path


def _steps(whole: bytes) -> list[dict[str, Any]]:
    """The steps in whole lines. Raises IntegrityError where a line is not the next step."""
    try:
        lines = [json.loads(line) for line in whole.split(b"\n") if line]
        steps = [line["step"] for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IntegrityError(f"{_STEPS} holds a line that is no step") from None
    if steps != list(range(len(lines))):
        raise IntegrityError(f"{_STEPS} does not hold each step once, in order")
    return lines
