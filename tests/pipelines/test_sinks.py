"""The releases file: its mark, what a crash leaves, and files that are not ours."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema_rs
import pytest

from evertally.errors import IntegrityError, InvalidParameter, StorageFull
from evertally.pipelines.dead_letters import DeadLetterFile, Reason
from evertally.pipelines.releases import Release, SelectionLoss, StreamHeader, read_releases
from evertally.pipelines.sinks import FileSink

HEADER = StreamHeader(
    "s",
    1,
    ("a", "b"),
    0,
    60_000,
    "rational:W32",
    "event",
    "add-remove",
    0.5,
    2.25,
    1e-6,
    4.5,
    1,
    0,
    1,
    1,
    1,
    2**30,
)


def release(t: int, key: str = "a", value: int = 5) -> Release:
    return Release("s", key, 1, t, t * 60_000, value, 20.5288, "rational:W32")


def test_records_are_read_back(tmp_path: Path) -> None:
    rows = [release(t, key, value) for t, value in ((1, -3), (2, 10**30)) for key in ("a", "b")]
    with FileSink(tmp_path / "r", HEADER.encode()) as sink:
        sink.rewind(0)
        assert sink.append(row.encode() for row in rows) == (tmp_path / "r").stat().st_size
    header, releases = read_releases(tmp_path / "r")
    assert header == HEADER
    assert list(releases) == rows


def test_records_match_the_published_schema() -> None:
    schema = json.loads((files("evertally.pipelines") / "schemas/release.schema.json").read_text())
    valid = jsonschema_rs.validator_for(schema).is_valid
    for line in (HEADER.encode(), release(3).encode(), release(1, 'ключ " \\', -5).encode()):
        assert valid(json.loads(line))
    assert not valid({**json.loads(release(1).encode()), "t": 0})
    assert not valid({"schema": "evertally.release/2"})


def test_a_torn_end_is_cut_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with FileSink(path, HEADER.encode()) as sink:
        sink.rewind(0)
        mark = sink.append([release(1).encode()])
    whole = path.read_bytes()
    for tail in (b"{", release(2).encode()[:-1], release(2).encode(), release(2).encode() + b"\0\0"):
        path.write_bytes(whole + tail)
        with FileSink(path, HEADER.encode()) as sink:
            assert sink.last_tick() in (1, 2)
            sink.rewind(mark)
            assert sink.append([release(2).encode()]) == len(whole + release(2).encode())
        assert path.read_bytes() == whole + release(2).encode()


def test_a_releaser_that_wakes_up_takes_nothing_away(tmp_path: Path) -> None:
    """Stopped before `rewind` or `append` while its successor published: the file only ever grows."""
    path = tmp_path / "r"
    lines = [release(t).encode() for t in range(1, 6)]
    with FileSink(path, HEADER.encode()) as zombie, FileSink(path, HEADER.encode()) as successor:
        zombie.rewind(0)
        mark = zombie.append(lines[:1])
        successor.rewind(mark)
        successor.append(lines[1:4])
        zombie.rewind(mark)  # and here it may be killed
        assert path.read_bytes() == HEADER.encode() + b"".join(lines[:4])
        with path.open("ab") as half:
            half.write(lines[4][:40])  # the successor is just writing
        zombie.append(lines[1:3])
        zombie.append(lines[3:4])
        assert path.read_bytes() == HEADER.encode() + b"".join(lines[:4]) + lines[4][:40]
        assert successor.append(lines[4:]) == path.stat().st_size
    assert path.read_bytes() == HEADER.encode() + b"".join(lines)


def test_a_run_killed_before_its_first_mark_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for left in (HEADER.encode()[:10], HEADER.encode(), HEADER.encode() + release(1).encode()[:30]):
        path.write_bytes(left)
        with FileSink(path, HEADER.encode()) as sink:
            assert sink.last_tick() == 0
            sink.rewind(0)
            sink.append([release(1).encode()])
        assert path.read_bytes() == HEADER.encode() + release(1).encode()


def test_a_file_of_another_machine_goes_on_though_its_header_ends_in_other_digits(tmp_path: Path) -> None:
    path = tmp_path / "r"
    there = replace(HEADER, mu=math.nextafter(0.5, 1.0), epsilon=math.nextafter(2.25, 0.0)).encode()
    with FileSink(path, there) as sink:
        mark = sink.append([release(1).encode()])
    assert len(there) > len(HEADER.encode())
    with FileSink(path, HEADER.encode()) as sink:
        assert sink.last_tick() == 1
        sink.rewind(mark)
        sink.append([release(2).encode()])
    assert path.read_bytes() == there + release(1).encode() + release(2).encode()
    for other in (
        replace(HEADER, mu=0.5000001).encode(),
        replace(HEADER, clip=2).encode(),
        there.replace(b":", b": ", 1),
        there.replace(b',"mu"', b',"epsilon":9.0,"mu"'),
    ):
        path.write_bytes(other + release(1).encode())
        with FileSink(path, HEADER.encode()) as sink, pytest.raises(IntegrityError):
            sink.rewind(len(other))


def test_files_that_are_not_ours_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"somebody's notes\n")
    with FileSink(path, HEADER.encode()) as sink:
        assert sink.last_tick() == 0
        with pytest.raises(InvalidParameter, match=r"output\.releases"):
            sink.rewind(0)
        with pytest.raises(IntegrityError):
            sink.rewind(1000)
        with pytest.raises(IntegrityError):
            sink.rewind(5)
    assert path.read_bytes() == b"somebody's notes\n"
    with pytest.raises(InvalidParameter):
        FileSink(tmp_path, HEADER.encode())
    with pytest.raises(InvalidParameter, match="regular file"):
        FileSink(Path("/dev/null"), HEADER.encode())


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with FileSink(tmp_path / "r", HEADER.encode()) as sink:
        sink.rewind(0)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull, match="ENOSPC"):
            sink.append([release(1).encode()])


def test_a_disk_that_fills_up_within_a_row_is_said_so(tmp_path: Path) -> None:
    """Closing the file tries its last bytes again; that error must not stand in the first one's place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = [release(t).encode() for t in range(1, 500)]

    def write() -> None:
        with FileSink(tmp_path / "r", HEADER.encode()) as sink:
            sink.rewind(0)
            sink.append(rows)

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        with pytest.raises(StorageFull, match="EFBIG"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    write()
    assert (tmp_path / "r").read_bytes() == HEADER.encode() + b"".join(rows)


def test_files_that_are_no_releases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for content in (b"", b"x\n", b"{}\n", b'{"schema":"evertally.stream/1"}\n', b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InvalidParameter):
            read_releases(path)
    path.write_bytes(HEADER.encode() + release(1).encode() + b"{}\n")
    with pytest.raises(IntegrityError, match="line 3"):
        list(read_releases(path)[1])
    with pytest.raises(InvalidParameter):
        read_releases(tmp_path / "none")


IMPOSSIBLE: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("incarnation", "tick_ms", "clip", "participations", "min_separation"), (0, -1, 2**63)),
    **dict.fromkeys(("per_tick", "slack_horizon"), (0, -1, 2**63)),
    **dict.fromkeys(("mu", "epsilon", "delta", "sigma"), (0, -0.5, float("nan"), float("inf"), 10**400)),
    "lower": (1, -2),
    "adjacency": ("", "other"),
    "selection": ({}, {"mu": 1}, dict.fromkeys(SelectionLoss._fields, "1"), []),
}


@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_a_header_with_an_impossible_number_is_refused(field: str) -> None:
    fields = json.loads(HEADER.encode())
    for value in IMPOSSIBLE[field]:
        with pytest.raises(InvalidParameter):
            StreamHeader.decode(json.dumps({**fields, field: value}).encode())


@pytest.mark.parametrize(
    ("field", "value"), [("t", 0), ("t", -1), ("incarnation", 0), ("stderr", float("nan"))]
)
def test_a_release_with_an_impossible_number_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidParameter):
        Release.decode(json.dumps({**json.loads(release(1).encode()), field: value}).encode())


@pytest.mark.slow
def test_two_runs_do_not_write_one_file_of_dead_letters(tmp_path: Path) -> None:
    path = tmp_path / "d"
    program = (
        "import sys; from pathlib import Path; from evertally.pipelines.dead_letters import DeadLetterFile;"
        "DeadLetterFile(Path(sys.argv[1])).close()"
    )

    def another() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=False)

    with DeadLetterFile(path) as letters:
        letters.write(3, 97, Reason.MALFORMED)
        assert b"ServiceUnavailable" in another().stderr
        letters.write(4, 120, Reason.MALFORMED)
    assert len([json.loads(line) for line in path.read_bytes().splitlines()]) == 2
    assert another().returncode == 0
    assert path.read_bytes() == b""


def test_dead_letters_are_private_and_hold_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with DeadLetterFile(path) as letters:
        letters.write(3, 97, Reason.MALFORMED)
        letters.write(4, 120, Reason.KEY_UNDECLARED)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"line": 3, "offset": 97, "code": "malformed"},
        {"line": 4, "offset": 120, "code": "key_undeclared"},
    ]
    with pytest.raises(InvalidParameter):
        DeadLetterFile(tmp_path / "none" / "d")
    with pytest.raises(StorageFull), DeadLetterFile(Path("/dev/full")) as letters:
        letters.write(1, 0, Reason.MALFORMED)
