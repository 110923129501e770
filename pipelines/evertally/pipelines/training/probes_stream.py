"""Public randomness: uniform bits that anybody with the public seed can draw again.

Probes must be reproducible and need not be secret; they are drawn from a keyed stream all the same, so that
no global generator, whose state anything may move, decides what the preconditioner is.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from evertally.counters.keys import derive_key
from evertally.errors import InvalidParameter

__all__ = ["PublicStream"]

_TAG: Final = b"evertally/1/probe"
_SEED_BYTES_MIN: Final = 16


class PublicStream:
    """Uniform and normal draws that are a function of (seed, purpose, step, index)."""

    __slots__ = ("_encryptor",)

    def __init__(self, seed: bytes, purpose: str, step: int, index: int) -> None:
        """Start the stream.

        Args:
            seed: at least 16 public bytes, fixed for a run.
            purpose: separates streams of one step, for example "inputs" and "labels".
            step: the training step before which the probes are drawn, >= 0.
            index: number of the probe, so that it does not depend on how probes are batched, >= 0.
        """
        if not isinstance(seed, bytes) or len(seed) < _SEED_BYTES_MIN:
            raise InvalidParameter("seed", type(seed).__name__, f"at least {_SEED_BYTES_MIN} bytes")
        key = derive_key(seed, _TAG, purpose.encode(), struct.pack(">QQ", step, index))
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` uniform 64-bit words."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The next `count` draws from the open interval (0, 1)."""
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def normal(self, count: int) -> NDArray[np.float64]:
        """The next `count` standard normal draws, to double precision."""
        drawn: NDArray[np.float64] = ndtri(self.uniform(count))
        return drawn

    def integers(self, low: int, high: int, count: int) -> NDArray[np.int64]:
        """The next `count` integers of [low, high); their bias is below (high - low) 2^-64."""
        span = high - low
        return np.array([low + (int(word) * span >> 64) for word in self.words(count)], dtype=np.int64)
