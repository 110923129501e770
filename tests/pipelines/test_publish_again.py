"""A releases file that was lost, torn or changed is published again from the ledger, byte for byte."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evertally.accountants.budget.opening import open_ledger
from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines import outbox
from evertally.pipelines.config import load_config
from evertally.pipelines.outbox import publish_again
from evertally.pipelines.sinks import FileSink
from evertally.pipelines.stream_spec import header_of

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(gates: Path, cli: Cli) -> bytes:
    """The bytes of a whole run."""
    code, _, error = cli("run", "--config", gates / "run.toml")
    assert code == 0, error
    return (gates / "releases.jsonl").read_bytes()


def publish(cli: Cli, folder: Path, *more: object) -> tuple[int, str, str]:
    return cli(
        "ledger", "publish", folder / "state.sqlite", "gates", "--to", folder / "releases.jsonl", *more
    )


DAMAGES: dict[str, tuple[Callable[[bytes], bytes | None], bool]] = {
    # what happens to the file, and whether it then contradicts the ledger
    "lost": (lambda _: None, False),
    "emptied": (lambda _: b"", False),
    "torn": (lambda text: text[:-17], False),
    "truncated": (lambda text: b"".join(text.splitlines(keepends=True)[:5]), False),
    "header torn": (lambda text: text[:40], False),
    "value changed": (lambda text: text.replace(b'"value":', b'"value":1', 1), True),
    "header changed": (lambda text: text.replace(b'"epsilon":', b'"epsilon":1', 1), True),
    "line lost": (
        lambda text: b"".join(text.splitlines(keepends=True)[:3] + text.splitlines(True)[4:]),
        True,
    ),
    "line added": (lambda text: text + text.splitlines(keepends=True)[-1], True),
    "another file": (lambda _: b"not ours\n", True),
}


def test_damaged_files_are_published_again(ran: bytes, gates: Path) -> None:
    file = gates / "releases.jsonl"
    store = open_ledger(gates / "state.sqlite", create=False)
    opened = store.find_stream("gates")
    assert opened is not None
    before = store.head(opened.shard(0)), store.scope_status("gates")
    for damage, (change, contradicts) in DAMAGES.items():
        left = change(ran)
        assert left != ran, damage
        file.unlink()
        if left is not None:
            file.write_bytes(left)
        if contradicts:
            with pytest.raises(IntegrityError, match="--replace"):
                publish_again(store, opened, file)
            assert file.read_bytes() == left, damage
        assert publish_again(store, opened, file, replace=contradicts) == (6, True), damage
        assert file.read_bytes() == ran, damage
        assert file.stat().st_mode & 0o777 == 0o644
        assert publish_again(store, opened, file) == (6, False)
    assert (store.head(opened.shard(0)), store.scope_status("gates")) == before  # nothing charged, no epoch
    assert sorted(path.name for path in gates.glob(".releases*")) == []
    store.close()


def test_stream_goes_on_after_its_file_was_published_again(ran: bytes, gates: Path, cli: Cli) -> None:
    file = gates / "releases.jsonl"
    file.write_bytes(ran.replace(b'"value":', b'"value":1', 1)[:-9])
    assert publish(cli, gates)[0] == 4
    code, said, error = publish(cli, gates, "--replace", "--json")
    assert code == 0, error
    assert json.loads(said)["t"] == 6
    text = (gates / "run.toml").read_text().replace("06:00", "08:00")
    (gates / "run.toml").write_text(text)
    assert cli("run", "--config", gates / "run.toml", "--resume")[0] == 0
    assert file.read_bytes().startswith(ran)
    assert file.read_bytes().count(b"\n") == 1 + 2 * 8


def test_resume_names_the_way_out(ran: bytes, gates: Path, cli: Cli) -> None:
    (gates / "releases.jsonl").write_bytes(ran[:1000])
    code, _, error = cli("run", "--config", gates / "run.toml", "--resume")
    assert code == 4
    assert "evertally ledger publish" in error


def test_file_ahead_of_the_ledger_is_evidence_and_stays(gates: Path, cli: Cli, ran: bytes) -> None:
    # the ledger is put back to before a later run of the same stream had released three more ticks
    old = shutil.copytree(gates, gates.with_name("old"))
    text = (gates / "run.toml").read_text().replace("06:00", "09:00")
    (gates / "run.toml").write_text(text)
    assert cli("run", "--config", gates / "run.toml", "--resume")[0] == 0
    ahead = (gates / "releases.jsonl").read_bytes()
    assert ahead.startswith(ran)
    assert len(ahead) > len(ran)
    (old / "releases.jsonl").write_bytes(ahead)
    for more in ((), ("--replace",)):
        code, _, error = publish(cli, old, *more)
        assert code == 4
        assert "older ledger" in error
        assert (old / "releases.jsonl").read_bytes() == ahead


def test_running_releasers_file_is_left_alone(gates: Path, cli: Cli, ran: bytes) -> None:
    with FileSink(gates / "releases.jsonl", ran.splitlines(keepends=True)[0]):
        code, _, error = publish(cli, gates, "--replace")
    assert code == 5
    assert "running" in error
    assert publish(cli, gates)[0] == 0


def test_a_releaser_waits_for_who_replaces_its_file_and_takes_the_new_one(ran: bytes, tmp_path: Path) -> None:
    file, header = tmp_path / "releases.jsonl", ran.splitlines(keepends=True)[0]
    file.write_bytes(header)
    (tmp_path / "new").write_bytes(header)
    held: list[FileSink] = []
    with file.open("rb") as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        opening = threading.Thread(target=lambda: held.append(FileSink(file, header)))
        opening.start()
        (tmp_path / "new").replace(file)
    opening.join()
    held[0].rewind(len(header))
    held[0].append([b"{}\n"])
    held[0].close()
    assert file.read_bytes() == header + b"{}\n"


def test_a_file_replaced_between_opening_and_locking_is_left(
    ran: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, header = tmp_path / "releases.jsonl", ran.splitlines(keepends=True)[0]
    file.write_bytes(header)
    lock = fcntl.flock

    def slowly(descriptor: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "new").write_bytes(header)
        (tmp_path / "new").replace(file)
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", slowly)
    with FileSink(file, header) as sink:
        sink.rewind(len(header))
        sink.append([b"{}\n"])
    assert file.read_bytes() == header + b"{}\n"


def test_a_file_that_a_releaser_makes_meanwhile_is_not_taken_from_it(
    ran: bytes, gates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, header = gates / "releases.jsonl", ran.splitlines(keepends=True)[0]
    file.unlink()
    store = open_ledger(gates / "state.sqlite", create=False)
    opened = store.find_stream("gates")
    assert opened is not None
    began: list[FileSink] = []
    lines = outbox._lines

    def interrupted(*arguments: object) -> Iterator[bytes]:
        began.append(FileSink(file, header))
        return lines(*arguments)  # type: ignore[arg-type]  # what it is called with

    monkeypatch.setattr(outbox, "_lines", interrupted)
    with pytest.raises(ServiceUnavailable, match="running releaser"):
        publish_again(store, opened, file)
    began[0].append([b"{}\n"])
    began[0].close()
    assert file.read_bytes() == header + b"{}\n"
    assert list(gates.glob(".releases*")) == []
    store.close()


def test_what_a_killed_publisher_left_is_in_nobodys_way(ran: bytes, gates: Path, cli: Cli) -> None:
    """In a container the next one has the same process number."""
    (gates / f".releases.jsonl.{os.getpid()}.new").write_bytes(ran[:100])
    (gates / "releases.jsonl").unlink()
    code, _, error = publish(cli, gates)
    assert code == 0, error
    assert (gates / "releases.jsonl").read_bytes() == ran


def test_unknown_stream_and_unusable_place_are_refused(gates: Path, cli: Cli, ran: bytes) -> None:
    assert ran
    assert cli("ledger", "publish", gates / "state.sqlite", "else", "--to", gates / "x")[0] == 2
    assert cli("ledger", "publish", gates / "state.sqlite", "gates", "--to", gates / "no" / "x")[0] == 2
    assert cli("ledger", "publish", gates / "state.sqlite", "gates", "--to", gates)[0] == 2


def test_folded_rows_cannot_be_published_again(gates: Path, cli: Cli, ran: bytes) -> None:
    store = open_ledger(gates / "state.sqlite")
    opened = store.find_stream("gates")
    assert opened is not None
    assert header_of(opened, store.scope_status("gates").scope) == load_config(
        gates / "run.toml"
    ).spec.header(1)
    shard = opened.shard(0)
    store.fold(shard, store.acquire(shard, "folds"), 2)
    with pytest.raises(Exception, match="folded"):
        publish_again(store, opened, gates / "new.jsonl")
    assert not (gates / "new.jsonl").exists()
    store.close()
    assert publish(cli, gates)[0] == 4
    assert (gates / "releases.jsonl").read_bytes() == ran
