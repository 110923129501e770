"""One reader under fire: how many inputs, and what each may do.

An input may be read or refused by one of evertally's own errors. It may not raise anything else, take
longer than a second, or leave memory behind: 50 MiB over a whole run is the limit.
"""

from __future__ import annotations

import gc
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.fuzz.mutations import Mutator

from evertally.errors import EvertallyError

HANG_S = 1.0
GROWTH_BYTES = 50 << 20
_STUCK_S = 60
_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader and good inputs of it.

    Attributes:
        corpus: good inputs.
        read: reads one input; raises EvertallyError or nothing.
        text: whether edits of words, numbers and lines make sense.
    """

    corpus: Sequence[bytes]
    read: Callable[[bytes], object]
    text: bool


class Broken(AssertionError):
    """What an input did that no input may do."""


def judge(reader: Reader, data: bytes) -> bool:
    """Whether the input was refused. Raises Broken for what is neither read nor refused by name."""
    try:
        reader.read(data)
    except EvertallyError as error:
        str(error)
        return True
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error!s:.200} for {data[:2000]!r}") from error
    return False


def attack(reader: Reader, inputs: int, seed: int) -> int:
    """Fire `inputs` at the reader; returns how many were refused. Raises Broken."""
    for good in reader.corpus:  # a reader that refuses everything would pass every test
        if judge(reader, good):
            raise Broken(f"a good input is refused: {good[:500]!r}")
    mutated = Mutator(reader.corpus, seed, text=reader.text)
    refused, settled, before = 0, int(inputs * _WARM_UP), 0
    for number in range(inputs):
        if number == settled:
            gc.collect()
            before = resident()
        refused += fire(reader, next(mutated))
    gc.collect()
    grown = resident() - before
    if grown > GROWTH_BYTES:
        raise Broken(f"memory grew by {grown >> 20} MiB over {inputs} inputs")
    return refused


def fire(reader: Reader, data: bytes) -> bool:
    """One input, timed; whether it was refused. Raises Broken."""
    start = time.perf_counter()
    refused = _alarmed(reader, data)
    if time.perf_counter() - start <= HANG_S:
        return refused
    for _ in range(3):  # on a busy machine any input can be slow once
        start = time.perf_counter()
        _alarmed(reader, data)
        if time.perf_counter() - start <= HANG_S:
            return refused
    raise Broken(f"more than {HANG_S} s, three times in turn, for {data[:2000]!r}")


def _alarmed(reader: Reader, data: bytes) -> bool:
    def stuck(number: int, frame: FrameType | None) -> NoReturn:
        raise Broken(f"no answer within {_STUCK_S} s for {data[:2000]!r}")

    before = signal.signal(signal.SIGALRM, stuck)
    timer = signal.setitimer(signal.ITIMER_REAL, _STUCK_S)
    try:
        return judge(reader, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def folder_in_memory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, in memory where there is such a place: a file is written once an input."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix=prefix, dir=memory if memory.is_dir() else None)


def resident(process: int | str = "self") -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096
