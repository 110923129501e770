"""The noise of a training run: every draw is a pure function of (run, attempt, step, tensor, element).

A draw is the exactly rounded Gaussian of one AES-256 block under the key of (run, attempt): its two halves
are tensor and element, and step. So no two tensors, steps, attempts or runs share a block, a step that is
replayed draws the same noise, and a loader or a model cannot move it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from evertally.counters.gaussian import exact_gaussians
from evertally.counters.keys import NoiseKey
from evertally.errors import InvalidParameter
from evertally.validation import integer, positive_integer

__all__ = ["ELEMENTS_MAX", "TENSORS_MAX", "StepNoise"]

_ELEMENT_BITS: Final = 40
_BLOCK: Final = 1 << 16
ELEMENTS_MAX: Final = 1 << _ELEMENT_BITS
"""Elements of one tensor."""
TENSORS_MAX: Final = 1 << (63 - _ELEMENT_BITS)
"""Tensors of one model."""


class StepNoise:
    """Gaussian integers of standard deviation 2^30 for the steps of one attempt.

    Guarantees:
        - the same draw for the same place, in whatever blocks or order it is asked for
          (tests/pipelines/test_training_noise.py::test_a_draw_depends_on_its_place_alone).
        - steps at or past the plan's end are refused
          (tests/pipelines/test_training_noise.py::test_no_noise_past_the_last_row).
    """

    __slots__ = ("_key", "_steps", "_threads")

    def __init__(self, key: NoiseKey, steps: int, *, threads: int = 0) -> None:
        """Bind the key of (run, attempt) to a plan.

        Args:
            key: made from the run's random id; its incarnation is the attempt.
            steps: rows of the plan, b k.
            threads: workers that draw side by side; 0 takes one a core. They change no bit.
        """
        self._key: Final = key
        self._steps: Final = positive_integer("steps", steps, high=2**62)
        self._threads: Final = integer("threads", threads, low=0, high=1024) or os.cpu_count() or 1

    def draw(self, step: int, tensor: int, count: int, *, first: int = 0) -> NDArray[np.int64]:
        """Noise of elements first .. first+count-1 of a tensor, in grid units, int64 of shape (count,).

        Raises:
            InvalidParameter: a step outside 0 .. steps-1; nothing is drawn.
        """
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < self._steps:
            raise InvalidParameter("step", step, f"a row of the plan, 0 to {self._steps - 1}")
        integer("tensor", tensor, low=0, high=TENSORS_MAX - 1)
        integer("first", first, low=0, high=ELEMENTS_MAX)
        integer("count", count, low=0, high=ELEMENTS_MAX - first)
        drawn = np.empty(count, np.int64)

        def fill(start: int) -> None:
            stop = min(start + _BLOCK, count)
            drawn[start:stop] = self._block(step, tensor, first + start, stop - start)

        starts = range(0, count, _BLOCK)
        if len(starts) < 2 or self._threads == 1:
            for start in starts:
                fill(start)
        else:
            with ThreadPoolExecutor(min(self._threads, len(starts))) as pool:
                list(pool.map(fill, starts))
        return drawn

    def _block(self, step: int, tensor: int, first: int, count: int) -> NDArray[np.int64]:
        blocks = np.empty((count, 2), dtype=">u8")
        place = np.uint64((tensor << _ELEMENT_BITS) + first)
        blocks[:, 0] = np.arange(count, dtype=np.uint64) + place
        blocks[:, 1] = step
        plain = blocks.tobytes()
        words = np.frombuffer(self._key.encrypt(plain), dtype=">u8").astype(np.uint64).reshape(-1, 2)

        def more_bits(index: int, lane: int) -> int:
            return int.from_bytes(self._key.encrypt(plain[16 * index : 16 * index + 16], lane), "big")

        return exact_gaussians(words[:, 0], words[:, 1], more_bits)

    def __repr__(self) -> str:
        return f"StepNoise({self._key!r}, steps={self._steps})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise source does not leave its process")
