"""`evertally` with one fault in it: `python tests/audits/mutants.py FAULT run --config stream.toml`.

Each fault is put into the running program from outside, so that the audit meets it as it would meet a bug:
through files and exit codes. Nothing of this is in the shipped package.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from evertally.counters import keys
from evertally.counters.contribution import Contribution
from evertally.pipelines.cli.app import main

_DRAW = keys.KeyedNoise.block
_SENSITIVITY = Contribution.sensitivity
_DERIVE = keys.NoiseKey.__init__
RESET_TICKS = 8


def _quieter(scale: float) -> Callable[[], None]:
    def draw(self: Any, first: int, count: int) -> Any:
        return np.rint(_DRAW(self, first, count) * scale).astype(np.int64)

    return lambda: setattr(keys.KeyedNoise, "block", draw)


def _norm_forgotten() -> None:
    """The noise is scaled to one contribution and not to ||R||."""

    def sensitivity(self: Contribution, factorization: Any) -> float:
        return _SENSITIVITY(self, factorization) / math.sqrt(
            factorization.sensitivity_squared(horizon=factorization.horizon)
        )

    Contribution.sensitivity = sensitivity  # type: ignore[method-assign]  # the fault


def _shared_by_two_keys() -> None:
    def draw(self: Any, first: int, count: int) -> Any:
        block = _DRAW(self, first, count)
        block[:, 1::2] = block[:, : 2 * (block.shape[1] // 2) : 2]
        return block

    keys.KeyedNoise.block = draw  # type: ignore[method-assign]  # the fault


def _tick_reset() -> None:
    """Counting of ticks begins again under the same key."""

    def draw(self: Any, first: int, count: int) -> Any:
        return np.concatenate(
            [_DRAW(self, (t - 1) % RESET_TICKS + 1, 1) for t in range(first, first + count)]
        )

    keys.KeyedNoise.block = draw  # type: ignore[method-assign]  # the fault


def _charged_as_one() -> None:
    def sensitivity(self: Contribution, factorization: Any) -> float:
        return _SENSITIVITY(replace(self, participations=1, per_tick=1), factorization)

    Contribution.sensitivity = sensitivity  # type: ignore[method-assign]  # the fault


def _stream_id_forgotten() -> None:
    """A deleted ledger and the kept key file draw the same noise again."""

    def derive(self: Any, master: bytes, *, stream: str, stream_id: bytes, incarnation: int = 0) -> None:
        _DERIVE(self, master, stream=stream, stream_id=bytes(len(stream_id)), incarnation=incarnation)

    keys.NoiseKey.__init__ = derive  # type: ignore[method-assign]  # the fault


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "noise-0.9": _quieter(0.9),
    "noise-0.5": _quieter(0.5),
    "norm-forgotten": _norm_forgotten,
    "shared-by-two-keys": _shared_by_two_keys,
    "tick-reset": _tick_reset,
    "charged-as-one": _charged_as_one,
    "stream-id-forgotten": _stream_id_forgotten,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main()
