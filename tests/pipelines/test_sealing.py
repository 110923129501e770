"""Sealed states open only where they belong, unchanged."""

from __future__ import annotations

import itertools

import pytest

from evertally.errors import IntegrityError
from evertally.pipelines.sealing import Sealer

KEY = bytes(range(32))


def test_a_sealed_state_opens_in_its_place() -> None:
    sealer = Sealer(KEY, "s", 1)
    sealed = sealer.seal(b"state", 3, 77)
    assert sealer.open(sealed, 3, 77) == b"state"
    assert b"state" not in sealed
    assert sealer.seal(b"state", 3, 77) != sealed


def test_any_other_place_or_key_is_refused() -> None:
    sealed = Sealer(KEY, "s", 1).seal(b"state", 3, 77)
    for key, stream, incarnation, shard, t in itertools.product(
        (KEY, bytes(32)), ("s", "r"), (1, 2), (3, 4), (77, 76)
    ):
        if (key, stream, incarnation, shard, t) == (KEY, "s", 1, 3, 77):
            continue
        with pytest.raises(IntegrityError):
            Sealer(key, stream, incarnation).open(sealed, shard, t)


def test_every_flipped_bit_is_noticed() -> None:
    sealer = Sealer(KEY, "s", 1)
    sealed = sealer.seal(b"state", 0, 1)
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 1
        with pytest.raises(IntegrityError):
            sealer.open(bytes(damaged), 0, 1)
    for size in range(len(sealed)):
        with pytest.raises(IntegrityError):
            sealer.open(sealed[:size], 0, 1)
