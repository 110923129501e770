"""Random allocation, manifests and spooled bins. No torch."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evertally.errors import IntegrityError, InvalidParameter
from evertally.pipelines.sealing import Sealer
from evertally.pipelines.training.allocation import Allocation
from evertally.pipelines.training.examples import ExampleBlock, ExampleForm, Range
from evertally.pipelines.training.examples_files import FileExamples
from evertally.pipelines.training.examples_spool import ExampleSpool
from evertally.pipelines.training.manifest import Manifest, freeze

KEY = bytes(32)
FORM = ExampleForm(("x",), (3,), 0, "y", 5, "")
BY_UNIT = ExampleForm(("x",), (3,), 0, "y", 5, "who")


@pytest.mark.slow
def test_bins_are_uniform_and_fixed() -> None:
    """Chi-square over 97 bins with a fixed key: false-alarm rate below 1e-6 for a fresh one."""
    allocation, units, bins = Allocation(KEY, 97), 97_000, np.zeros(97)
    for unit in range(units):
        bins[allocation.bin_of(b"%d" % unit)] += 1
    statistic = float(((bins - units / 97) ** 2 / (units / 97)).sum())
    assert abs(statistic - 96) < 5 * np.sqrt(2 * 96)
    again = Allocation(KEY, 97)
    assert all(allocation.bin_of(b"%d" % unit) == again.bin_of(b"%d" % unit) for unit in range(100))
    other = Allocation(b"\x01" * 32, 97)
    agree = sum(allocation.bin_of(b"%d" % u) == other.bin_of(b"%d" % u) for u in range(9700))
    assert abs(agree - 100) < 60
    assert repr(KEY) not in repr(allocation)


@pytest.mark.parametrize("batches", [0, -1, True, 2**41, 1.5])
def test_a_number_of_bins_is_a_number(batches: int) -> None:
    with pytest.raises(InvalidParameter, match="batches"):
        Allocation(KEY, batches)


def blocks(count: int, order: np.random.Generator | None = None, per_unit: int = 1) -> Iterator[ExampleBlock]:
    rows = np.arange(count) if order is None else order.permutation(count)
    for part in np.array_split(rows, 7):
        yield ExampleBlock(
            np.stack([np.full(3, row, np.float32) for row in part]),
            (part % 5).astype(np.int64),
            [b"u%d" % (row // per_unit) for row in part],
            [b"r%d" % row for row in part],
        )


def spool(folder: Path, *, records: int = 1, form: ExampleForm = FORM) -> ExampleSpool:
    return ExampleSpool(folder, Sealer(KEY, "training:test", 0), Allocation(KEY, 4), form, records)


def test_batches_do_not_depend_on_the_order_of_reading(tmp_path: Path) -> None:
    one, other = spool(tmp_path / "a"), spool(tmp_path / "b")
    one.write(blocks(300), "m")
    other.write(blocks(300, np.random.default_rng(0)), "m")
    seen = 0
    for number in range(4):
        a, b = one.batch(number), other.batch(number)
        assert a.features.tobytes() == b.features.tobytes()
        assert a.labels.tobytes() == b.labels.tobytes()
        assert a.units.tolist() == list(range(1, len(a.labels) + 1))
        seen += len(a.labels)
    assert seen == 300


def test_a_units_records_share_a_bin_and_are_bounded_by_their_own_alone(tmp_path: Path) -> None:
    whole, fewer = (
        spool(tmp_path / "a", records=3, form=BY_UNIT),
        spool(tmp_path / "b", records=3, form=BY_UNIT),
    )
    whole.write(blocks(200, per_unit=5), "m")
    fewer.write(blocks(195, per_unit=5), "m")  # without the last unit

    def kept(bins: ExampleSpool) -> set[float]:
        found = []
        for number in range(4):
            batch = bins.batch(number)
            for start, stop in zip([0, *batch.units[:-1].tolist()], batch.units.tolist(), strict=True):
                rows = batch.features[start:stop, 0]
                assert len({int(row) // 5 for row in rows}) == 1
                assert len(rows) == 3
                found += rows.tolist()
        return set(found)

    last = {float(row) for row in range(195, 200)}
    assert kept(whole) - last == kept(fewer)
    assert len(kept(whole)) == 120


def test_empty_bins_are_batches_of_no_example(tmp_path: Path) -> None:
    bins = spool(tmp_path / "a")
    bins.write(iter(()), "m")
    for number in range(4):
        batch = bins.batch(number)
        assert batch.features.shape == (0, 3)
        assert batch.labels.shape == (0,)


def test_a_spool_is_complete_for_its_manifest_only_and_is_sealed(tmp_path: Path) -> None:
    bins = spool(tmp_path / "a")
    assert not bins.is_complete("m")
    bins.write(blocks(50), "m")
    assert spool(tmp_path / "a").is_complete("m")
    assert not spool(tmp_path / "a").is_complete("other")
    for path in (tmp_path / "a").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        held = path.read_bytes()  # long needles: two bytes of a name stand in sealed bytes by chance
        assert not any(np.full(3, row, np.float32).tobytes() in held for row in range(1, 50))
    (victim,) = list((tmp_path / "a").glob("bin-000001.sealed"))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    again = spool(tmp_path / "a")
    assert again.is_complete("m")
    with pytest.raises(IntegrityError):
        again.batch(1)
    victim.unlink()
    with pytest.raises(IntegrityError):
        again.batch(1)


LINES = [
    '{"x": [1, 2.5, 3], "y": 1, "who": "ada"}',
    "not json",
    '{"x": [1, 2], "y": 1, "who": "ada"}',
    '{"x": [1, 2, NaN], "y": 1, "who": "ada"}',
    '{"x": [1, 2, 1e400], "y": 1, "who": "ada"}',
    '{"x": [1, 2, 3], "y": 5, "who": "ada"}',
    '{"x": [1, 2, 3], "y": "1.5", "who": "ada"}',
    '{"x": [1, 2, 3], "y": 4, "who": 12}',
    '{"x": [1, 2, 3], "y": 4}',
    '{"y": 4, "who": 12}',
    '{"x": ["1", "2", true], "y": 4, "who": 12}',
]


def test_records_outside_the_declared_form_are_refused_and_noted(tmp_path: Path) -> None:
    path, refused = tmp_path / "x.jsonl", tmp_path / "refused.jsonl"
    path.write_text("\n".join(LINES))
    source = FileExamples(path, "jsonl", BY_UNIT, refused)
    found = list(source.read(source.freeze()))
    assert sum(len(block) for block in found) == 2
    assert found[0].units == [b"ada", b"12"]
    assert found[0].features.tolist() == [[1.0, 2.5, 3.0], [1.0, 2.0, 3.0]]
    codes = [json.loads(line) for line in refused.read_text().splitlines()]
    assert [entry["line"] for entry in codes] == [2, 3, 4, 5, 6, 7, 9, 10, 11]
    assert refused.stat().st_mode & 0o077 == 0
    assert "ada" not in refused.read_text()


def test_csv_gzip_and_arrays_give_the_same_examples(tmp_path: Path) -> None:
    flat = ExampleForm(("a", "b", "c"), (3,), 0, "y", 5, "")
    rows = [(i, i / 4, -i, i % 5) for i in range(30)]
    text = "id,a,b,c,y\n" + "".join(f"{i},{a},{b},{c},{y}\n" for i, (a, b, c, y) in enumerate(rows))
    (tmp_path / "x.csv").write_text(text)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    array = np.array([row[:3] for row in rows], np.float64)
    np.savez(tmp_path / "x.npz", x=array, y=np.array([row[3] for row in rows]))
    sources = [
        FileExamples(tmp_path / "x.csv", "csv", flat, tmp_path / "r"),
        FileExamples(tmp_path / "x.csv.gz", "csv", flat, tmp_path / "r"),
        FileExamples(tmp_path / "x.npz", "npz", FORM, tmp_path / "r"),
    ]
    for source in sources:
        found = list(source.read(source.freeze()))
        assert np.concatenate([block.features for block in found]).tolist() == array.tolist()
        assert np.concatenate([block.labels for block in found]).tolist() == [row[3] for row in rows]


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], dtype=object), y=np.array([1]))
    with pytest.raises(InvalidParameter, match="pickle"):
        FileExamples(tmp_path / "x.npz", "npz", FORM, tmp_path / "r").freeze()


def test_another_set_of_records_than_the_frozen_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(LINES))
    source = FileExamples(path, "jsonl", BY_UNIT, tmp_path / "r")
    manifest = freeze(source, BY_UNIT)
    path.write_text("\n".join([*LINES, LINES[0]]))
    with pytest.raises(IntegrityError, match="another file"):
        list(source.read(manifest.ranges))


def test_a_manifest_is_named_by_a_keyed_digest_and_says_nothing_in_its_repr() -> None:
    ranges = (Range("t/0", 0, 12_345, 12_345, "ab"),)
    manifest = Manifest('{"format":"kafka"}', "{}", ranges)
    assert Manifest.decode(manifest.encode()) == manifest
    assert manifest.digest(KEY) == Manifest.decode(manifest.encode()).digest(KEY)
    assert manifest.digest(KEY) != manifest.digest(b"\x01" * 32)
    assert "12345" not in repr(manifest) + repr(ranges)
    other = Manifest('{"format":"kafka"}', "{}", (Range("t/0", 0, 12_346, 12_345, "ab"),))
    assert manifest.digest(KEY) != other.digest(KEY)
    for broken in (b"", b"{}", manifest.encode()[:-1], b'{"version":"evertally.manifest/2"}'):
        with pytest.raises(IntegrityError):
            Manifest.decode(broken)
