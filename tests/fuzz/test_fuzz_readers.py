"""Whatever comes in: read, or refused by an error of our own. 10,000 inputs a reader, a million in soak."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz.attack import Broken, Reader, attack, folder_in_memory, judge
from tests.fuzz.mutations import Mutator
from tests.fuzz.readers import READERS

from evertally.errors import InvalidParameter

pytestmark = pytest.mark.slow

INPUTS = 10_000
GUIDED = Path(__file__).with_name("guided.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory("evertally-fuzz-") as name:
        yield Path(name)


@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_inputs(name: str, folder: Path) -> None:
    refused = attack(READERS[name](folder), INPUTS, seed=20)
    assert refused < INPUTS


@pytest.mark.soak
@pytest.mark.parametrize("name", READERS)
def test_a_million_inputs(name: str, folder: Path) -> None:
    """Half of them from a fresh seed, half led by the branches they reach."""
    attack(READERS[name](folder), 500_000, seed=time.time_ns())
    done = subprocess.run(
        [sys.executable, str(GUIDED), name, "500000", str(time.time_ns() % 2**31)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def _reader(read: object) -> Reader:
    return Reader((b"good",), read, text=True)  # type: ignore[arg-type]  # each of the functions below


def _accepts(data: bytes) -> None:
    """All is well."""


def _refuses(data: bytes) -> None:
    if data != b"good":
        raise InvalidParameter("data", "a mutation", "the good input")


def test_refusals_by_name_are_no_faults() -> None:
    assert attack(_reader(_accepts), 200, seed=1) == 0
    assert attack(_reader(_refuses), 200, seed=1) > 100


def test_other_errors_are_faults() -> None:
    def fails(data: bytes) -> None:
        if len(data) < 4:
            raise IndexError

    with pytest.raises(Broken, match="IndexError"):
        attack(_reader(fails), 200, seed=1)


def test_a_reader_that_refuses_everything_is_a_fault() -> None:
    def refuses_all(data: bytes) -> None:
        raise InvalidParameter("data", "anything", "nothing")

    with pytest.raises(Broken, match="good input"):
        attack(_reader(refuses_all), 10, seed=1)


def test_what_hangs_is_a_fault() -> None:
    def hangs(data: bytes) -> None:
        if len(data) > 6:
            time.sleep(1.1)

    with pytest.raises(Broken, match="more than 1"):
        attack(_reader(hangs), 200, seed=1)


def test_what_leaks_is_a_fault() -> None:
    kept: list[mmap.mmap] = []

    def leaks(_: bytes) -> None:
        fresh = mmap.mmap(-1, 2**20)  # pages of its own: the heap may have room left by earlier tests
        fresh.write(b"x" * 2**20)
        kept.append(fresh)

    with pytest.raises(Broken, match="memory grew"):
        attack(_reader(leaks), 100, seed=1)


def test_a_seed_gives_the_same_inputs() -> None:
    a, b, c = (Mutator((b"x = 1\n", b"y = 2\n"), seed, text=True) for seed in (7, 7, 8))
    first = [next(a) for _ in range(100)]
    assert first == [next(b) for _ in range(100)]
    assert first != [next(c) for _ in range(100)]
    assert judge(_reader(_refuses), b"good") is False
