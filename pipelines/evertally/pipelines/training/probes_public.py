"""Probes from a folder of public examples: `inputs.npy` and, where the labels are public too, `labels.npy`.

Declaring a folder public is the user's word; its digest goes into the run's manifest.

Reference: arXiv 2605.13418, "Public DP-KFC".
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from evertally.errors import InvalidParameter
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.probes import Targets
from evertally.pipelines.training.probes_stream import PublicStream

__all__ = ["PublicFolder"]

_PIECE_BYTES: Final = 1 << 20


class PublicFolder:
    """Public examples, drawn with replacement by the public stream.

    Attributes:
        path: the folder.
        digest: SHA-256 of the arrays' files, in hex.
    """

    def __init__(self, path: Path, seed: bytes, targets: Targets) -> None:
        """Open the folder.

        Args:
            path: holds `inputs.npy` of shape (examples, ...), floats or integers, and perhaps `labels.npy`.
            seed: public bytes, at least 16.
            targets: drawn where there is no `labels.npy`.

        Raises:
            InvalidParameter: no such file, an object array, or labels that do not match.
        """
        self.path: Final = path
        self._seed, self._targets = seed, targets
        self._inputs = _array(path / "inputs.npy")
        labels = path / "labels.npy"
        self._labels = _array(labels) if labels.exists() else None
        if self._labels is not None and len(self._labels) != len(self._inputs):
            raise InvalidParameter(
                "probe", f"{len(self._labels)} labels", f"{len(self._inputs)}, one an input"
            )
        files = [path / "inputs.npy", *([labels] if self._labels is not None else [])]
        self.digest: Final = _digest(files)

    def check_form(self, shape: tuple[int, ...], *, tokens: int, classes: int) -> None:
        """Raise InvalidParameter where the folder's examples have not the form of the run's."""
        inputs, labels = self._inputs, self._labels
        real = inputs.dtype.kind == "f"
        in_range = real or (int(inputs.min()) >= 0 and int(inputs.max()) < tokens)
        if inputs.shape[1:] != shape or real == (tokens > 0) or not in_range:
            expected = f"shape (n, {', '.join(map(str, shape))}), " + (
                f"tokens < {tokens}" if tokens else "floats"
            )
            raise InvalidParameter("preconditioner.probe", f"inputs.npy of {inputs.dtype}", expected)
        if labels is None:
            return
        fits = labels.ndim == 1 and (
            not classes
            or (labels.dtype.kind in "iu" and int(labels.min()) >= 0 and int(labels.max()) < classes)
        )
        if not fits:
            expected = f"one an input, in [0, {classes})" if classes else "one number an input"
            raise InvalidParameter("preconditioner.probe", f"labels.npy of {labels.dtype}", expected)

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        """`count` examples: float32 (or int64) inputs and their targets."""
        chosen = np.array(
            [
                PublicStream(self._seed, "inputs", step, first + i).integers(0, len(self._inputs), 1)[0]
                for i in range(count)
            ],
            dtype=np.int64,
        )
        inputs = np.array(self._inputs[chosen])
        kind = np.float32 if inputs.dtype.kind == "f" else np.int64
        if self._labels is None:
            targets = self._targets.draw(self._seed, step, first, count)
        else:
            labels = np.array(self._labels[chosen])
            targets = torch.from_numpy(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))
        return MicroBatch((torch.from_numpy(inputs.astype(kind)),), targets)

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        own = {"labels": "public"} if self._labels is not None else self._targets.describe()
        return {"probe": "public", "seed": self._seed.hex(), "digest": self.digest, **own}


def _array(path: Path) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        raise InvalidParameter(
            "probe", path.name, "a readable .npy file of numbers in the public folder"
        ) from None
    if array.ndim == 0 or len(array) == 0 or array.dtype.kind not in "fiu":
        raise InvalidParameter("probe", f"{path.name} of {array.dtype}", "at least one example, numbers only")
    return array


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    return digest.hexdigest()
