"""The key file: private, whole, created once, never printed."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.keyfile import KeyFile


def test_a_new_key_file_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    made = KeyFile.open_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeyFile.open(path).derive("seal", "s", bytes(16), 0) == made.derive("seal", "s", bytes(16), 0)
    assert KeyFile.open_or_create(path).derive("seal", "s", bytes(16), 0) == made.derive(
        "seal", "s", bytes(16), 0
    )
    assert [p.name for p in tmp_path.iterdir()] == ["noise.key"]


def test_every_purpose_stream_and_incarnation_has_its_own_key(tmp_path: Path) -> None:
    key = KeyFile.create(tmp_path / "k")
    derived = {
        key.derive(label, stream, stream_id, incarnation)
        for label in ("seal", "unit", "chain", "dead-letter", "ledger")
        for stream in ("a", "b")
        for stream_id in (bytes(16), b"\x01" * 16)
        for incarnation in (0, 1)
    }
    assert len(derived) == 5 * 2 * 2 * 2
    with pytest.raises(InvalidParameter):
        key.derive("noise", "a", bytes(16), 0)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o644, 0o601])
def test_a_key_file_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    KeyFile.create(path)
    path.chmod(mode)
    with pytest.raises(InvalidParameter, match="0600") as refused:
        KeyFile.open(path)
    assert refused.value.got == f"mode {mode:04o} of {path}"  # which of all files, and what to do
    assert refused.value.expected.endswith("chmod 600")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    KeyFile.create(path)
    whole = path.read_bytes()
    for data in (
        b"",
        b"not a key",
        whole[:-1],
        whole + b"x",
        bytes([whole[0] ^ 1]) + whole[1:],
        whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
    ):
        path.write_bytes(data)
        with pytest.raises(IntegrityError):
            KeyFile.open(path)
    with pytest.raises(InvalidParameter):
        KeyFile.open(tmp_path / "absent")
    with pytest.raises(InvalidParameter):
        KeyFile.open(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidParameter, match="regular file"):  # and it does not wait for a writer
        KeyFile.open(tmp_path / "pipe")
    with pytest.raises(InvalidParameter, match="existing folder"):
        KeyFile.create(tmp_path / "no" / "k")


def test_starters_that_race_agree_on_one_secret(tmp_path: Path) -> None:
    path, found = tmp_path / "k", []

    def start() -> None:
        found.append(KeyFile.open_or_create(path).derive("seal", "s", bytes(16), 0))

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 16


def test_the_secret_is_not_shown_and_does_not_travel(tmp_path: Path) -> None:
    path = tmp_path / "k"
    key = KeyFile.create(path)
    secret = path.read_bytes()[16:48]
    assert secret.hex() not in repr(key)
    assert repr(secret) not in repr(key)
    with pytest.raises(TypeError):
        pickle.dumps(key)
    assert os.path.basename(path) == "k"
