"""Pictures of releases, and the standard error of a mechanism that knows the end."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from evertally.counters.yardstick import yardstick
from evertally.errors import InvalidParameter
from evertally.pipelines.known_end import known_end_stderr
from evertally.pipelines.plot import ReleaseTable
from evertally.pipelines.releases import Release, StreamHeader

Cli = Callable[..., tuple[int, str, str]]
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
    2.2,
    1e-6,
    4.5,
    1,
    0,
    1,
    1,
    1,
    2**30,
)


def releases(ticks: int, header: StreamHeader = HEADER) -> Iterator[Release]:
    for t in range(1, ticks + 1):
        for place, key in enumerate(header.keys):
            yield Release(
                header.stream,
                key,
                1,
                t,
                t * 60_000,
                3 * t * (place + 1) - 40,
                8.0 + math.log(t),
                "rational:W32",
            )


def write(path: Path, ticks: int, header: StreamHeader = HEADER) -> Path:
    path.write_bytes(header.encode() + b"".join(release.encode() for release in releases(ticks, header)))
    return path


def test_known_end_is_the_closed_form_for_events() -> None:
    ticks = [1, 2, 100, 8761]
    header = dataclasses.replace(HEADER, clip=3)
    expected = [3 / 0.5 * math.sqrt(yardstick(8761) * yardstick(t)) for t in ticks]
    assert known_end_stderr(header, 8761, ticks) == pytest.approx(expected, rel=1e-12)


def test_known_end_for_units_is_the_costliest_pattern() -> None:
    """Against every admissible pattern of 3 ticks at least 2 apart in 8, by a dense matrix."""
    header = dataclasses.replace(HEADER, unit="person", participations=3, min_separation=2, per_tick=2)
    c = np.array([math.comb(2 * n, n) / 4**n for n in range(8)])
    dense = np.array([[c[i - j] if i >= j else 0.0 for j in range(8)] for i in range(8)])
    worst = max(
        np.linalg.norm(dense[:, [i, j, k]].sum(axis=1))
        for i in range(8)
        for j in range(i + 2, 8)
        for k in range(j + 2, 8)
    )
    expected = 2 * worst / 0.5 * math.sqrt((c**2).sum())
    assert known_end_stderr(header, 8, [8])[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("adjacency", "lower", "factor"),
    [
        ("replace-value", 0, 1.0),
        ("replace-value", -1, 2.0),
        ("replace", 0, math.sqrt(2)),
        ("replace", -1, 2.0),
    ],
)
def test_known_end_follows_the_adjacency(adjacency: str, lower: int, factor: float) -> None:
    header = dataclasses.replace(HEADER, adjacency=adjacency, lower=lower)
    assert known_end_stderr(header, 50, [50])[0] == pytest.approx(
        factor * known_end_stderr(HEADER, 50, [50])[0]
    )


@pytest.mark.slow
def test_a_picture_of_any_releases_file(cli: Cli, tmp_path: Path) -> None:
    many = dataclasses.replace(HEADER, keys=tuple(f"key {n} $x_1$ \\frac{{ 語" for n in range(30)))
    for name, ticks, header in (("one", 1, HEADER), ("some", 300, HEADER), ("many", 40, many)):
        path = write(tmp_path / f"{name}.jsonl", ticks, header)
        code, out, err = cli("plot", path, "-o", tmp_path / f"{name}.png", "--json")
        assert code == 0, err
        result = json.loads(out)
        assert (result["ticks"], result["keys"]) == (ticks, len(header.keys))
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", 20)
    assert cli("plot", path, "-o", tmp_path / "none" / "r.png")[0] == 2
    assert cli("plot", tmp_path / "none.jsonl", "-o", tmp_path / "r.png")[0] == 2
    whole = path.read_bytes()
    path.write_bytes(HEADER.encode())
    assert cli("plot", path, "-o", tmp_path / "r.png")[0] == 2
    path.write_bytes(whole[:-9])
    assert cli("plot", path, "-o", tmp_path / "r.png")[0] == 4
    lines = whole.splitlines(keepends=True)
    for broken in (lines[:3] + lines[4:], lines[:-1], [lines[0], *lines[3:]], [lines[0], lines[2], lines[1]]):
        path.write_bytes(b"".join(broken))
        assert cli("plot", path, "-o", tmp_path / "r.png")[0] == 2


def test_a_long_stream_is_thinned_but_keeps_its_ends() -> None:
    table = ReleaseTable.collect(HEADER, releases(5000))
    assert len(table.ticks) < 1600
    assert (table.ticks[0], table.ticks[-1]) == (1, 5000)
    assert table.values[-1].tolist() == [3 * 5000 - 40, 6 * 5000 - 40]


def test_a_total_that_no_double_holds_is_refused() -> None:
    huge = [row._replace(value=10**400) if row.t == 2 else row for row in releases(3)]
    with pytest.raises(InvalidParameter, match="double"):
        ReleaseTable.collect(HEADER, huge)
