"""Algorithm 1: correlated noise by FFT refills at powers of two, the next block prepared ahead.

The draws are a pure function of the tick, so nothing of size t is stored: a restart draws z_0 ..
again and computes the same block from the same inputs (arXiv 2506.15018, Algorithm 1).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evertally.counters.factorization import NoiseSource
from evertally.counters.fft_refill import NoiseSeries, block_bounds, refill
from evertally.counters.fft_worker import AheadWorker, Pending
from evertally.errors import IntegrityError, UnsupportedMechanism

__all__ = ["TICKS_MAX", "FftEngine", "refuse_past"]

IntArray = NDArray[np.int64]

TICKS_MAX: Final = 1 << 28
"""Ticks an FFT engine serves; its memory grows with t, so longer streams take memory="constant"."""

_STATE: Final = struct.Struct(">BQQ")
_STATE_VERSION: Final = 1
_AT_ONCE: Final = 1 << 14  # draws prepared in the first step, so that the thread has time for the next
_DRAWS_AT_ONCE: Final = 1 << 15  # few hand-overs of the interpreter lock, none of them long


@dataclass(frozen=True, slots=True)
class _Block:
    low: int
    high: int
    draws: IntArray  # of ticks 0 .. high-1, shape (high, keys)
    noise: IntArray  # of ticks low .. high-1, shape (high - low, keys)


class FftEngine:
    """Noise engine of any Toeplitz L given by its coefficients; O(t) memory, O(log t) time a tick.

    Memory is about 64 bytes a tick and key at the peak: draws and noise of the current block and of
    the next.

    Guarantees:
        - |h_t - exact h_t| <= g/2 before rounding on every path of the noise (test_fft_engine).
        - restarted at any tick, the integers equal those of the uninterrupted engine.
        - no step computes a block once the next one is prepared; errors of the preparing thread
          surface at the step that needs the block, which may be tried again.
    """

    def __init__(
        self,
        series: NoiseSeries,
        source: NoiseSource,
        horizon: int | None = None,
        refill_block: Callable[[NoiseSeries, IntArray, int], IntArray] = refill,
    ) -> None:
        self._series: Final = series
        self._source: Final = source
        self._horizon: Final = horizon
        self._refill: Final = refill_block
        self._worker: Final = AheadWorker()
        self._t = 0
        self._low = self._high = 0
        self._last = TICKS_MAX if horizon is None else min(horizon, TICKS_MAX)
        self._draws = self._noise = np.empty((0, source.keys), dtype=np.int64)
        self._ahead: deque[Pending[_Block]] = deque()

    @property
    def t(self) -> int:
        """Ticks stepped so far."""
        return self._t

    def step(self) -> tuple[IntArray, IntArray]:
        """One tick: (z/g, round(h/g)), read-only int64 arrays of shape (keys,)."""
        i = self._t
        if i >= self._high:
            self._enter(i)
        if i >= self._last:
            refuse_past(self._horizon, TICKS_MAX, i + 1)
        row = i - self._low
        self._t = i + 1
        return self._draws[row], self._noise[row]

    def run(self, count: int) -> tuple[IntArray, IntArray]:
        """Many ticks: two int64 arrays of shape (count, keys)."""
        refuse_past(self._horizon, TICKS_MAX, self._t + count)
        draws = np.empty((count, self._source.keys), dtype=np.int64)
        noise = np.empty_like(draws)
        done = 0
        while done < count:
            if self._t >= self._high:
                self._enter(self._t)
            row = self._t - self._low
            take = min(count - done, self._high - self._t)
            draws[done : done + take] = self._draws[row : row + take]
            noise[done : done + take] = self._noise[row : row + take]
            done += take
            self._t += take
        return draws, noise

    def state(self) -> bytes:
        """Version, t and the number of keys: everything else is drawn and computed again."""
        return _STATE.pack(_STATE_VERSION, self._t, self._source.keys)

    def load(self, state: bytes, t: int) -> None:
        """Continue after tick t; the block is computed again at the next step."""
        if state != _STATE.pack(_STATE_VERSION, t, self._source.keys):
            raise IntegrityError("the stored noise state does not fit this stream's tick and keys")
        self._t = t
        self._low = self._high = 0
        self._ahead.clear()

    def close(self) -> None:
        """Stop the preparing thread. Stepping on starts it again."""
        self._worker.close()
        self._ahead.clear()

    def _enter(self, index: int) -> None:
        """Make the block of tick `index` current and have later ones prepared."""
        refuse_past(self._horizon, TICKS_MAX, index + 1)
        low, high = block_bounds(index)
        try:
            block = self._ahead.popleft().result() if self._ahead else self._compute(low, high, None)
        except BaseException:
            self._ahead.clear()  # so that the step may be tried again
            raise
        assert (block.low, block.high) == (low, high)
        spent: list[object] = [self._draws, self._noise]
        self._draws, self._noise = block.draws[low:], block.noise
        self._low, self._high = low, high
        if not self._ahead:
            self._prepare_after(block, spent)

    def _prepare_after(self, block: _Block, spent: list[object]) -> None:
        """Small blocks at once, the next larger one in the worker thread."""
        while 2 * block.high * self._source.keys <= _AT_ONCE and block.high < self._last:
            small = Pending(partial(self._compute, block.high, 2 * block.high, block.draws))
            small.compute()
            self._ahead.append(small)
            if small.failed:
                return  # surfaces when that block is needed
            block = small.result()
        if block.high < self._last:
            compute = partial(self._compute, block.high, 2 * block.high, block.draws)

            def prepare() -> _Block:
                spent.clear()  # give the old arrays back here: unmapping them would delay a step
                return compute()

            self._ahead.append(self._worker.submit(prepare))

    def _compute(self, low: int, high: int, earlier: IntArray | None) -> _Block:
        draws = np.empty((high, self._source.keys), dtype=np.int64)
        known = 0
        if earlier is not None:
            known = len(earlier)
            draws[:known] = earlier
        rows = max(1, _DRAWS_AT_ONCE // self._source.keys)
        for first in range(known, high, rows):
            count = min(rows, high - first)
            draws[first : first + count] = self._source.block(first + 1, count)
        noise = self._refill(self._series, draws, low)
        draws.setflags(write=False)
        noise.setflags(write=False)
        return _Block(low, high, draws, noise)


def refuse_past(horizon: int | None, ticks_max: int, tick: int) -> None:
    """Raise UnsupportedMechanism when `tick` lies past the declared horizon or the engine's reach."""
    if horizon is not None and tick > horizon:
        raise UnsupportedMechanism(f"tick {tick} lies past the declared horizon={horizon} of this mechanism")
    if tick > ticks_max:
        raise UnsupportedMechanism(
            f"tick {tick} lies past the {ticks_max} ticks of an FFT engine; use memory='constant'"
        )
