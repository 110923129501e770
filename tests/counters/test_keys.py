"""The keyed stream: pure, injective, separate for every stream, incarnation, key and tick."""

from __future__ import annotations

import hmac
import multiprocessing
import pickle
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from evertally.counters.keys import KeyedNoise, NoiseKey, derive_key
from evertally.errors import InvalidParameter

MASTER = bytes(range(32))
STREAM_ID = bytes(16)


def noise_key(**changes: object) -> NoiseKey:
    fields: dict[str, object] = {"stream": "visits", "stream_id": STREAM_ID, "incarnation": 0, **changes}
    return NoiseKey(MASTER, **fields)  # type: ignore[arg-type]  # deliberately loose for bad input


def test_golden_draws() -> None:
    """Frozen bytes of format 1: a change here would republish other noise for old streams."""
    block = KeyedNoise(noise_key(), (0, 7)).block(1, 3)
    assert block.dtype == np.int64
    assert block.tolist() == [[1681547931, -179248655], [468873861, 12570855], [550211048, -1050049323]]


def test_draws_follow_the_written_derivation() -> None:
    """HKDF by RFC 5869 from hmac alone, one AES block, the quantile to 60 digits."""
    parts = (b"evertally/1/noise", b"visits", STREAM_ID, bytes(8), b"\x00")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    secret = hmac.digest(hmac.digest(bytes(32), MASTER, "sha256"), info + b"\x01", "sha256")
    cipher = Cipher(algorithms.AES256(secret), modes.ECB()).encryptor()
    block = KeyedNoise(noise_key(), (0, 7)).block(1, 20)
    with mpmath.workdps(60):
        for position, index in enumerate((0, 7)):
            for t in range(1, 21):
                bits = int.from_bytes(cipher.update(index.to_bytes(8, "big") + t.to_bytes(8, "big")), "big")
                tail = mpmath.mpf(bits & (2**127 - 1)) / mpmath.mpf(2) ** 128
                magnitude = int(mpmath.nint(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail) * 2**30))
                assert block[t - 1, position] == (-magnitude if bits >> 127 else magnitude)


def test_a_block_is_a_pure_function_of_key_and_tick() -> None:
    whole = KeyedNoise(noise_key(), (3, 1)).block(1, 64)
    assert (KeyedNoise(noise_key(), (1,)).block(17, 20)[:, 0] == whole[16:36, 1]).all()


@pytest.mark.parametrize(
    "change", [{"stream": "visit"}, {"stream_id": b"\x01" + bytes(15)}, {"incarnation": 1}]
)
def test_any_change_of_the_derivation_gives_independent_noise(change: dict[str, object]) -> None:
    one = KeyedNoise(noise_key()).block(1, 20_000)[:, 0].astype(float)
    other = KeyedNoise(noise_key(**change)).block(1, 20_000)[:, 0].astype(float)
    # correlation of independent draws: standard deviation 1/sqrt(n); 5/sqrt(n) fails with p < 6e-7
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(20_000)


def test_two_keys_of_one_stream_are_uncorrelated() -> None:
    draws = KeyedNoise(noise_key(), (0, 1)).block(1, 20_000).astype(float)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(20_000)


def test_the_draws_have_the_stated_deviation() -> None:
    draws = KeyedNoise(noise_key(), range(50)).block(1, 2000).astype(float) / 2**30
    n = draws.size
    assert abs(draws.mean()) < 5.5 / np.sqrt(n)
    assert abs((draws**2).mean() - 1) < 5.5 * np.sqrt(2 / n)
    assert abs((draws**4).mean() - 3) < 5.5 * np.sqrt(96 / n)


def test_derivation_is_injective() -> None:
    assert derive_key(MASTER, b"t", b"ab", b"c") != derive_key(MASTER, b"t", b"a", b"bc")
    assert derive_key(MASTER, b"t", b"ab") != derive_key(MASTER, b"tab")


def test_secrets_do_not_show_and_do_not_travel() -> None:
    key = noise_key()
    assert MASTER.hex() not in repr(key)
    assert "secret" in repr(KeyedNoise(key))
    for secret in (key, KeyedNoise(key)):
        with pytest.raises(TypeError):
            pickle.dumps(secret)


def _child_draws(queue: multiprocessing.Queue[list[int]]) -> None:
    queue.put(KeyedNoise(noise_key(incarnation=5)).block(1, 8)[:, 0].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_draw_the_same_noise_for_the_same_tick(method: Literal["fork", "spawn"]) -> None:
    """Same (key, t) in any process: the same value; the ledger decides who may publish it."""
    mine = KeyedNoise(noise_key(incarnation=5)).block(1, 8)[:, 0].tolist()
    context: Any = multiprocessing.get_context(method)
    queue: multiprocessing.Queue[list[int]] = context.Queue()
    workers = [context.Process(target=_child_draws, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [queue.get(timeout=60) for _ in workers] == [mine, mine]
    for worker in workers:
        worker.join(60)


@pytest.mark.parametrize(
    "change",
    [
        {"stream": ""},
        {"stream_id": b"short"},
        {"incarnation": -1},
        {"incarnation": 2**63},
        {"incarnation": 1.0},
    ],
)
def test_unusable_parts_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        noise_key(**change)


def test_key_indices_are_checked() -> None:
    for indices in ((), (1, 1), (-1,), (2**63,)):
        with pytest.raises(InvalidParameter):
            KeyedNoise(noise_key(), indices)
    with pytest.raises(InvalidParameter):
        KeyedNoise(noise_key()).block(0, 1)
