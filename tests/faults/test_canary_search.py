"""The search for canaries finds each of them in each form, and nothing in what is sealed."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path

import pytest
from tests.faults.canary_search import files, leaks, processes

KEY = bytes(range(200, 232))
SUM = 314_159_265_359
UNIT = "passport-271828182845"
SECRETS: dict[str, int | bytes | str] = {"key": KEY, "sum": SUM, "unit": UNIT}
WRITTEN: dict[str, tuple[str, bytes]] = {
    "raw": ("key", b"x" + KEY),
    "hex": ("key", KEY.hex().encode()),
    "a list": ("key", json.dumps(list(KEY)).encode()),
    "repr": ("key", f"key={KEY!r}".encode()),
    "one number": ("key", str(int.from_bytes(KEY)).encode()),
    "base64": ("key", base64.b64encode(KEY)),
    "url base64": ("key", base64.urlsafe_b64encode(b"a" + KEY)),
    "base64 of more": ("key", base64.b64encode(b"ab" + KEY + b"cd")),
    "decimal": ("sum", f'{{"total":{SUM}}}'.encode()),
    "with commas": ("sum", f"total {SUM:,}".encode()),
    "a float": ("sum", f"{float(SUM):e}".encode()),
    "eight bytes": ("sum", struct.pack("<q", SUM)),
    "sixteen bytes": ("sum", SUM.to_bytes(16, "big")),
    "a double": ("sum", struct.pack(">d", float(SUM))),
    "a sum in base64": ("sum", base64.b64encode(f"total={SUM};".encode())),
    "clear": ("unit", f'"who":"{UNIT}"'.encode()),
    "utf-16": ("unit", UNIT.encode("utf-16")),
    "a unit in base64": ("unit", base64.b64encode(b"q" + UNIT.encode())),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_each_form_is_found(form: str) -> None:
    name, data = WRITTEN[form]
    assert leaks(SECRETS, [("there", data)]) == [f"{name} in there"]


def test_random_bytes_hold_nothing() -> None:
    assert leaks(SECRETS, [("sealed", os.urandom(2_000_000))]) == []


def test_files_and_processes_are_searched(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log").write_bytes(KEY.hex().encode())
    (tmp_path / "key").write_bytes(KEY)
    assert leaks(SECRETS, files(tmp_path, besides=["key"])) == ["key in deep/log"]
    assert [place for place, data in processes(os.getpid()) if data] == [
        f"/proc/{os.getpid()}/{name}" for name in ("cmdline", "environ")
    ]
