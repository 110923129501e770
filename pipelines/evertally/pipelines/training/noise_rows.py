"""Correlated noise in its private form: what is published is C x + z, and C^-1 is taken in public.

Row t of a run is the integers M_t + z_t, M_t = X_t + floor(sum_{j>=1} c_j X_{t-j} + 1/2), with X_t the
quantised sum of step t and c the first column of the strategy. The gradient that the optimiser sees, with its
correlated noise, is C^-1 of the published rows: a function of outputs alone. So data and noise meet in one
integer addition, and rounding is a record's only where the record itself is (docs/proofs/training-noise.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import BLT, BandedSquareRoot, BandMF, Identity, Strategy
from evertally.errors import IntegrityError, UnsupportedMechanism

__all__ = ["BufferedRows", "BandedRows", "Rows", "make_rows", "row_rounding", "slack_buffer"]

Integers = list[NDArray[np.int64]]
Floats = list[NDArray[np.float64]]
_TAPS_MAX: Final = 4096
T = TypeVar("T", np.int64, np.float64)


class Rows(Protocol):
    """Private memory of past sums on one side, public memory of published rows on the other."""

    def encode(self, sums: Integers) -> Integers:
        """M_t of this step's integers; remembers them."""
        ...

    def decode(self, row: Floats) -> Floats:
        """(C^-1 rows)_t of this step's published row; remembers it."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Both memories, for a sealed checkpoint: as sensitive as the examples."""
        ...

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Continue from `state`. Raises IntegrityError where it is another plan's."""
        ...


@dataclass(frozen=True, slots=True)
class _Decay:
    """c_d = sum_i scales[i] decays[i]^(d-1)."""

    scales: tuple[float, ...]
    decays: tuple[float, ...]


def make_rows(strategy: Strategy, participation: BallsInBins, sizes: tuple[int, ...]) -> Rows:
    """The rows of a strategy, for tensors with these numbers of elements.

    Raises:
        UnsupportedMechanism: a strategy without a private form here (see `row_rounding`).
    """
    shape = _shape(strategy, participation)
    if isinstance(shape, _Decay):
        return BufferedRows(shape.scales, shape.decays, sizes)
    return BandedRows(shape, sizes)


def row_rounding(strategy: Strategy, participation: BallsInBins, reach: float) -> float:
    """What rounding a correlated row adds per element to what a record moves, over the row's smallest tap.

    0 for independent noise. For buffered strategies it is paid by `slack_buffer` instead, so 0 here too.

    Args:
        strategy: what the run uses.
        participation: its rows.
        reach: at least the largest norm of a sum, in grid units.
    """
    shape = _shape(strategy, participation)
    if isinstance(shape, _Decay):
        return 0.0
    sizes = [abs(tap) for tap in shape[1:] if tap != 0.0]
    error = 2.0**-52 * (len(shape) + 1) * sum(sizes) * reach  # of the sum over past rows, in doubles
    return (1.0 + 2.0 * error) / min(sizes) if sizes else 0.0


def slack_buffer(
    strategy: Strategy, participation: BallsInBins, elements: int, record_norm: float, reach: int
) -> Strategy:
    """The strategy to charge for: with one more buffer where rounding reaches rows that no tap dominates.

    A buffered column never ends, so a record's rounding is in every later row. The extra buffer decays so
    slowly, and is so scaled, that it bounds that rounding in each row; entrywise larger columns can only
    cost more (docs/proofs/kahane.md).

    Args:
        strategy: what the run uses.
        participation: its rows.
        elements: coordinates d.
        record_norm: norm of one unit's integers in a step, in grid units.
        reach: largest norm of a sum, in grid units.
    """
    if not isinstance(strategy, BLT):
        return strategy
    rows, buffers = participation.rows, len(strategy.output_scales)
    growth = sum(s / (1.0 - d) for s, d in zip(strategy.output_scales, strategy.buffer_decays, strict=True))
    if growth * reach >= 2.0**62:
        raise UnsupportedMechanism("training.strategy: this BLT's buffers grow beyond 2^62 grid units")
    drift = 2.0**-52 * (rows + buffers + 4) * growth * reach
    per_row = math.sqrt(elements) * (1.0 + 2.0 * drift)
    decay = 1.0 - 2.0**-30
    scale = per_row / record_norm / decay**rows * (1.0 + 1e-6)
    return BLT((*strategy.output_scales, scale), (*strategy.buffer_decays, decay), strategy.normalize_columns)


def _shape(strategy: Strategy, participation: BallsInBins) -> tuple[float, ...] | _Decay:
    if isinstance(strategy, Identity):
        return (1.0,)
    if getattr(strategy, "normalize_columns", False):
        raise UnsupportedMechanism("training.strategy: normalised columns have no rows of integers")
    if isinstance(strategy, BLT):
        if min(strategy.output_scales) < 0.0:
            raise UnsupportedMechanism("training.strategy: a BLT with negative scales has no rounding bound")
        return _Decay(strategy.output_scales, strategy.buffer_decays)
    if isinstance(strategy, BandedSquareRoot | BandMF):
        taps = tuple(float(tap) for tap in strategy.column(participation).taps)
        if taps[0] != 1.0 or len(taps) > _TAPS_MAX:
            raise UnsupportedMechanism(f"training.strategy: at most {_TAPS_MAX} bands, the first tap 1")
        return taps
    raise UnsupportedMechanism(
        f"training.strategy: {type(strategy).__name__} correlates every later row with a record; "
        "train with Identity, BandedSquareRoot, BandMF or BLT"
    )


class BandedRows:
    """Rows of a banded strategy; remembers bands-1 sums and bands-1 gradients."""

    __slots__ = ("_gradients", "_sizes", "_sums", "_taps")

    def __init__(self, taps: tuple[float, ...], sizes: tuple[int, ...]) -> None:
        self._taps: Final = taps
        self._sizes: Final = sizes
        self._sums: Final[deque[Integers]] = deque(maxlen=len(taps) - 1)  # latest first
        self._gradients: Final[deque[Floats]] = deque(maxlen=len(taps) - 1)

    def encode(self, sums: Integers) -> Integers:
        """See `Rows`."""
        row = []
        for position, now in enumerate(sums):
            past = _weighted(self._taps, self._sums, position, now.size)
            row.append(now if past is None else now + np.floor(past + 0.5).astype(np.int64))
        self._sums.appendleft([tensor.copy() for tensor in sums])
        return row

    def decode(self, row: Floats) -> Floats:
        """See `Rows`."""
        gradients = []
        for position, now in enumerate(row):
            past = _weighted(self._taps, self._gradients, position, now.size)
            gradients.append(now if past is None else now - past)
        self._gradients.appendleft([tensor.copy() for tensor in gradients])
        return gradients

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `Rows`."""
        found: dict[str, NDArray[np.generic]] = {}
        found |= {f"sums.{age}": _joined(tensors) for age, tensors in enumerate(self._sums)}
        found |= {f"gradients.{age}": _joined(tensors) for age, tensors in enumerate(self._gradients)}
        return found

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `Rows`."""
        self._sums.clear()
        self._gradients.clear()
        ages = sum(1 for key in state if key.startswith("sums."))
        if ages > len(self._taps) - 1:
            raise IntegrityError("a checkpoint remembers more rows than this plan's strategy has bands")
        for age in range(ages):
            self._sums.append(_parted(state.get(f"sums.{age}"), self._sizes, np.int64))
            self._gradients.append(_parted(state.get(f"gradients.{age}"), self._sizes, np.float64))

    def __repr__(self) -> str:
        return f"BandedRows(bands={len(self._taps)}, <private>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("sums without noise do not pickle; use state() and seal it")


class BufferedRows:
    """Rows of a BLT: one private and one public buffer for each of its decays, whatever the run's length."""

    __slots__ = ("_decays", "_private", "_public", "_scales", "_sizes")

    def __init__(self, scales: tuple[float, ...], decays: tuple[float, ...], sizes: tuple[int, ...]) -> None:
        self._scales: Final = scales
        self._decays: Final = decays
        self._sizes: Final = sizes
        self._private = [_zeros(sizes) for _ in scales]
        self._public = [_zeros(sizes) for _ in scales]

    def encode(self, sums: Integers) -> Integers:
        """See `Rows`."""
        row = []
        for position, now in enumerate(sums):
            row.append(now + np.floor(self._past(self._private, position) + 0.5).astype(np.int64))
        self._remember(self._private, [tensor.astype(np.float64) for tensor in sums])
        return row

    def decode(self, row: Floats) -> Floats:
        """See `Rows`."""
        gradients = [now - self._past(self._public, position) for position, now in enumerate(row)]
        self._remember(self._public, gradients)
        return gradients

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `Rows`."""
        found: dict[str, NDArray[np.generic]] = {}
        for name, memory in (("private", self._private), ("public", self._public)):
            for buffer, tensors in enumerate(memory):
                found[f"{name}.{buffer}"] = _joined(tensors)
        return found

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `Rows`."""
        for name, memory in (("private", self._private), ("public", self._public)):
            for buffer in range(len(self._scales)):
                memory[buffer] = _parted(state.get(f"{name}.{buffer}"), self._sizes, np.float64)

    def _past(self, memory: list[Floats], position: int) -> NDArray[np.float64]:
        total = np.zeros(self._sizes[position])
        for scale, buffer in zip(self._scales, memory, strict=True):
            total = total + scale * buffer[position]
        return total

    def _remember(self, memory: list[Floats], newest: Floats) -> None:
        for decay, buffer in zip(self._decays, memory, strict=True):
            for position, tensor in enumerate(newest):
                buffer[position] = decay * buffer[position] + tensor

    def __repr__(self) -> str:
        return f"BufferedRows(buffers={len(self._scales)}, <private>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("sums without noise do not pickle; use state() and seal it")


def _weighted(
    taps: tuple[float, ...], memory: Sequence[Sequence[NDArray[Any]]], position: int, size: int
) -> NDArray[np.float64] | None:
    """sum_{j>=1} c_j memory[j-1][position], in one fixed order; None where nothing is remembered."""
    if not memory:
        return None
    total = np.zeros(size)
    for tap, tensors in zip(taps[1:], memory, strict=False):
        total = total + tap * tensors[position]
    return total


def _zeros(sizes: tuple[int, ...]) -> Floats:
    return [np.zeros(size) for size in sizes]


def _joined(tensors: Integers | Floats) -> NDArray[np.generic]:
    return np.concatenate(tensors) if tensors else np.zeros(0)


def _parted(flat: NDArray[np.generic] | None, sizes: tuple[int, ...], kind: type[T]) -> list[NDArray[T]]:
    if flat is None or flat.dtype != kind or flat.shape != (sum(sizes),):
        raise IntegrityError("a checkpoint's rows are not those of this model and strategy")
    typed = flat.astype(kind, copy=False)
    return [part.copy() for part in np.split(typed, np.cumsum(sizes)[:-1])]
