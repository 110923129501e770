"""Random allocation: which step a privacy unit's examples belong to, once for all epochs, without a list.

A unit's bin is HMAC-SHA256(secret of the run, unit) mod b. The bins are independent of each other and of
everything else to whoever lacks the secret, which is what balls-in-bins accounting asks for; they do not
depend on the order of reading, and they are the same after a crash. The secret belongs to one run: under a
known bin there is no amplification.
"""

from __future__ import annotations

import hmac
from typing import Final, NoReturn

from evertally.errors import InvalidParameter
from evertally.validation import positive_integer

__all__ = ["Allocation"]

_BITS: Final = 128
_BATCHES_MAX: Final = 2**40
_KEY_BYTES: Final = 32


class Allocation:
    """Balls in bins under a secret.

    Guarantees:
        - uniform to within 2^-88 for any number of bins, the same bin in every epoch
          (tests/pipelines/test_training_allocation.py::test_bins_are_uniform_and_fixed).
    """

    __slots__ = ("_batches", "_key")

    def __init__(self, key: bytes, batches: int) -> None:
        """Bind the run's secret to its number of bins."""
        if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
            raise InvalidParameter("key", type(key).__name__, f"{_KEY_BYTES} secret bytes")
        self._key: Final = key
        self._batches: Final = positive_integer("batches", batches, high=_BATCHES_MAX)

    @property
    def batches(self) -> int:
        """Number of bins b."""
        return self._batches

    def bin_of(self, unit: bytes) -> int:
        """The bin of a privacy unit, in [0, batches)."""
        return int.from_bytes(hmac.digest(self._key, unit, "sha256")[: _BITS // 8], "big") % self._batches

    def order_of(self, unit: bytes, record: bytes) -> bytes:
        """A unit's own order of its records: which are kept where a unit has too many reads no other unit."""
        return hmac.digest(self._key, len(unit).to_bytes(8, "big") + unit + record, "sha256")

    def __repr__(self) -> str:
        return f"Allocation(batches={self._batches}, <secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an allocation does not pickle: its key is the amplification")
