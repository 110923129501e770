"""The secrets of a training run, derived from the master secret and the run's random id."""

from __future__ import annotations

from typing import Final, NoReturn

from evertally.counters.keys import NoiseKey
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.allocation import Allocation

__all__ = ["RunKeys"]


class RunKeys:
    """Secrets of one run, from the key file and the run's random id; each purpose has its own."""

    __slots__ = ("_file", "_name", "_run")

    def __init__(self, file: KeyFile, name: str, run_id: str) -> None:
        """Bind the key file to the run's name and its random id, in hexadecimal."""
        self._file: Final = file
        self._name: Final = f"training:{name}"
        self._run: Final = bytes.fromhex(run_id)

    def noise(self, attempt: int) -> NoiseKey:
        """The key of an attempt's noise."""
        return self._file.noise_key(self._name, self._run, attempt)

    def sealer(self) -> Sealer:
        """What seals manifest, bins and checkpoints."""
        return Sealer(self._file.derive("seal", self._name, self._run, 0), self._name, 0)

    def allocation(self, batches: int) -> Allocation:
        """Which bin a unit belongs to."""
        return Allocation(self._file.derive("unit", self._name, self._run, 0), batches)

    def digest_key(self) -> bytes:
        """The key of the manifest's public digest."""
        return self._file.derive("chain", self._name, self._run, 0)

    def __repr__(self) -> str:
        return "RunKeys(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys do not pickle")
