"""`evertally run` as a user meets it: good input, every kind of bad input, exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.releases import read_releases
from evertally.testing import HistoryChecker

Cli = Callable[..., tuple[int, str, str]]
EVENTS = 60


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "run.toml").read_text()
    assert old in text
    (folder / "run.toml").write_text(text.replace(old, new))


def letters(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "dead.jsonl").read_text().splitlines()]


def last_totals(folder: Path) -> dict[str, int]:
    return {release.key: release.value for release in read_releases(folder / "releases.jsonl")[1]}


def near(folder: Path, totals: dict[str, int]) -> None:
    """Within 10 standard errors (below 12 for so few ticks): a lost batch of 1,000 would show."""
    released = last_totals(folder)
    assert released.keys() == totals.keys()
    for key, total in totals.items():
        assert abs(released[key] - total) < 120, key


def test_every_key_is_released_at_every_tick(gates: Path, cli: Cli) -> None:
    code, out, err = cli("run", "--config", gates / "run.toml")
    assert code == 0, err
    assert "Guarantee: adding or removing one event" in out
    header, releases = read_releases(gates / "releases.jsonl")
    rows = list(releases)
    assert [(r.t, r.key) for r in rows] == [(t, key) for t in range(1, 7) for key in ("north", "south")]
    checker = HistoryChecker()
    checker.see_file(header, rows)
    assert checker.anomalies() == []
    assert letters(gates) == []
    near(gates, {"north": 40, "south": 20})
    for secret in ("state.sqlite", "key", "dead.jsonl"):
        assert (gates / secret).stat().st_mode & 0o077 == 0


def test_json_output_and_json_logs(gates: Path, cli: Cli) -> None:
    code, out, err = cli("run", "--config", gates / "run.toml", "--json", "--log-format", "json")
    result = json.loads(out)
    assert (code, result["ok"], result["ticks"], result["ticks_released_now"]) == (0, True, 6, 6)
    assert all(json.loads(line)["level"] == "info" for line in err.splitlines())
    code, out, err = cli("run", "--config", gates / "run.toml", "--json", "--log-format", "json")
    assert code == 2
    assert json.loads(out)["mistakes"][0]["field"] == "stream.name"
    assert json.loads(err.splitlines()[-1])["level"] == "error"


def test_a_second_run_needs_resume_and_the_same_data(gates: Path, cli: Cli) -> None:
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 2  # nothing to resume yet
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    first = (gates / "releases.jsonl").read_bytes()
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "--resume" in err) == (2, True)
    code, out, _ = cli("run", "-c", gates / "run.toml", "--resume")
    assert (code, "(0 ticks released now)" in out) == (0, True)
    rows = (gates / "events.csv").read_text().splitlines()
    shuffled = [rows[0], *reversed(rows[1:])]
    (gates / "events.csv").write_text("\n".join(shuffled))
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 0  # the order of events is no difference
    (gates / "events.csv").write_text("\n".join(rows[:-1]))
    code, _, err = cli("run", "-c", gates / "run.toml", "--resume")
    assert (code, "differs" in err) == (4, True)
    assert (gates / "releases.jsonl").read_bytes() == first


def test_a_lost_releases_file_is_written_again_or_refused(gates: Path, cli: Cli) -> None:
    cli("run", "-c", gates / "run.toml")
    (gates / "releases.jsonl").unlink()
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 4
    (gates / "state.sqlite").rename(gates / "elsewhere")
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 2


def test_a_deleted_state_does_not_publish_over_the_old_releases(gates: Path, cli: Cli) -> None:
    cli("run", "-c", gates / "run.toml")
    first = (gates / "releases.jsonl").read_bytes()
    for name in ("state.sqlite", "state.sqlite.chainkey"):
        (gates / name).unlink()
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "ledger" in err) == (4, True)
    assert (gates / "releases.jsonl").read_bytes() == first
    store = open_ledger(gates / "state.sqlite")
    assert store.streams() == []  # and nothing was paid
    store.close()


@pytest.mark.parametrize(
    "foreign", [b"something else\n", b'{"schema":"evertally.releases/1","stream":"other"}\n']
)
def test_a_file_of_somebody_else_is_refused_before_anything_is_paid(
    foreign: bytes, gates: Path, cli: Cli
) -> None:
    (gates / "releases.jsonl").write_bytes(foreign)
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "this stream's own" in err) == (2, True)
    assert (gates / "releases.jsonl").read_bytes() == foreign
    store = open_ledger(gates / "state.sqlite")
    assert (store.streams(), store.scopes()) == ([], [])
    store.close()
    (gates / "releases.jsonl").unlink()
    assert cli("run", "-c", gates / "run.toml")[0] == 0


def test_another_key_file_and_a_readable_one_are_refused(gates: Path, cli: Cli) -> None:
    cli("run", "-c", gates / "run.toml")
    (gates / "key").chmod(0o640)
    code, _, err = cli("run", "-c", gates / "run.toml", "--resume")
    assert (code, "0600" in err) == (2, True)
    (gates / "key").unlink()
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 2
    (gates / "key").write_bytes(b"x" * 56)
    (gates / "key").chmod(0o600)
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 4


BAD_LINES = [
    ("2024-01-01T01:00Z,north,p1,NaN", "value_not_finite"),
    ("2024-01-01T01:00Z,north,p1,-3", "value_negative"),
    ("2024-01-01T01:00Z,north,p1,1e400", "value_too_large"),
    ("2024-01-01T01:00Z,,p1,1", "key_missing"),
    ("2024-01-01T01:00Z,east,p1,1", "key_undeclared"),
    ("2023-12-31T23:59Z,north,p1,1", "before_start"),
    ("2024-01-01T06:00Z,north,p1,1", "at_or_after_end"),
    ("2024-01-01T01:00,north,p1,1", "timestamp_without_offset"),
    ("yesterday,north,p1,1", "timestamp_malformed"),
    ("2024-01-01T01:00Z,north", "wrong_column_count"),
    ('2024-01-01T01:00Z,"north,p1,1', "malformed"),
]


def test_bad_lines_become_dead_letters_and_cost_no_good_one(gates: Path, cli: Cli) -> None:
    edit(gates, 'key = "gate"', 'key = "gate"\nvalue = "amount"')
    edit(gates, "epsilon = 1.0", "epsilon = 1.0\nclip = 4")
    good = (gates / "events.csv").read_text().splitlines()
    mixed = [good[0]]
    for number, line in enumerate(good[1:]):
        mixed += [line, BAD_LINES[number % len(BAD_LINES)][0]]
    (gates / "events.csv").write_text("\n".join(mixed))
    code, out, err = cli("run", "-c", gates / "run.toml")
    assert code == 0, err
    assert len(letters(gates)) == EVENTS
    assert [letter["code"] for letter in letters(gates)[: len(BAD_LINES)]] == [code for _, code in BAD_LINES]
    assert letters(gates)[0] == {
        "line": 3,
        "offset": len(mixed[0]) + len(mixed[1]) + 2,
        "code": "value_not_finite",
    }
    assert str(EVENTS) not in (out + err).replace(
        str(gates), ""
    )  # how many were refused is not for this output
    # exactly the good lines: the same releases as from a file without the bad ones
    (gates / "events.csv").write_text("\n".join(good))
    assert cli("run", "-c", gates / "run.toml", "--resume")[0] == 0


def test_other_takes_undeclared_keys(gates: Path, cli: Cli) -> None:
    edit(gates, 'keys = ["north", "south"]', 'keys = ["north", "rest"]\nother = "rest"')
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    assert letters(gates) == []
    near(gates, {"north": 40, "rest": 20})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (gzip.compress(b"at,gate\n2024-01-01T01:00Z,north\n" * 500, mtime=0)[:-3], "complete gzip"),
        (np.random.default_rng(3).bytes(9000), "binary"),
        (b"when,gate,who,amount\n", "source.timestamp"),
        (b"\x1f\x8b", "complete gzip"),
        (b"at,gate," + b"x," * 70_000 + b"\n2024-01-01T01:00Z,north\n", "first line"),
    ],
)
def test_unusable_files_release_nothing(gates: Path, cli: Cli, content: bytes, expected: str) -> None:
    (gates / "events.csv").write_bytes(content)
    code, out, err = cli("run", "-c", gates / "run.toml")
    assert code == 2
    assert expected in err
    assert "Traceback" not in out + err
    assert not (gates / "releases.jsonl").exists()
    store = open_ledger(gates / "state.sqlite", create=False)
    assert store.streams() == []  # and nothing was charged
    store.close()
    (gates / "events.csv").write_text("at,gate\n")  # header only: valid, and every tick is released
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    assert len(list(read_releases(gates / "releases.jsonl")[1])) == 12


ROWS = b"2024-01-01T01:00Z,north,patient-4711\n" * 90
HEADER = b"at,gate,who\n"
ZIPPED = gzip.compress(HEADER + ROWS, mtime=0)


@pytest.mark.parametrize(
    ("content", "hidden"),
    [
        (ROWS, ["4711", "north"]),  # no header: its first line is somebody's event
        (ZIPPED + b"~~patient", ["~~"]),
        (ZIPPED[:-8] + b"\x04\x03\x02\x01" + ZIPPED[-4:], [f"{zlib.crc32(HEADER + ROWS):x}"]),
        (ZIPPED[:-4] + b"\0\0\0\1", []),
    ],
)
def test_messages_about_unusable_files_quote_nothing_of_them(
    gates: Path, cli: Cli, content: bytes, hidden: list[str]
) -> None:
    (gates / "events.csv").write_bytes(content)
    code, out, err = cli("run", "-c", gates / "run.toml", "--json")
    assert code == 2
    assert [text for text in hidden if text in (out + err).replace(str(gates), "")] == []


def test_a_misspelt_column_is_told_the_near_ones(gates: Path, cli: Cli) -> None:
    edit(gates, 'key = "gate"', 'key = "gates"')
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "did you mean gate?" in err) == (2, True)


def test_a_closed_standard_input_is_named(gates: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(gates, 'path = "events.csv"', 'path = "-"\nformat = "csv"')
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "an open standard input" in err) == (2, True)


def test_json_lines_from_standard_input(gates: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(gates, 'path = "events.csv"', 'path = "-"\nformat = "jsonl"')
    lines = [
        json.dumps({"at": "2024-01-01T01:00Z", "gate": "north", "n": n}).encode() + b"\n" for n in range(300)
    ]
    stdin = io.BytesIO(gzip.compress(b"".join([*lines, b"garbage\n", b'{"at":"2024-01-01T01:00Z"}\n'])))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert code == 0, err
    near(gates, {"north": 300, "south": 0})
    assert [letter["code"] for letter in letters(gates)] == ["malformed", "key_missing"]


def test_units_are_bounded_before_counting(gates: Path, cli: Cli) -> None:
    edit(gates, 'key = "gate"', 'key = "gate"\nunit = "who"')
    edit(gates, "epsilon = 1.0", 'epsilon = 1.0\nunit = "person"\nparticipations = 2\nmin_separation = 3')
    rows = [f"2024-01-01T{n % 6:02d}:00Z,north,someone,1" for n in range(6000)]
    (gates / "events.csv").write_text("at,gate,who,amount\n" + "\n".join(rows))
    code, out, err = cli("run", "-c", gates / "run.toml")
    assert code == 0, err
    assert "all events of one person (counted in at most 2 ticks, at least 3 apart" in out
    near(gates, {"north": 2, "south": 0})


@pytest.mark.parametrize(("adjacency", "north"), [("add-remove", 1000), ("replace-value", 0)])
def test_an_unusable_value_keeps_its_place_where_values_alone_may_change(
    gates: Path, cli: Cli, adjacency: str, north: int
) -> None:
    edit(gates, 'key = "gate"', 'key = "gate"\nunit = "who"\nvalue = "amount"')
    edit(
        gates,
        "epsilon = 1.0",
        f'epsilon = 1.0\nunit = "person"\nparticipations = 1\nadjacency = "{adjacency}"',
    )
    rows = [
        f"2024-01-01T0{hour}:00Z,north,p{n},{'1' if hour else 'NaN'}" for hour in (0, 1) for n in range(1000)
    ]
    (gates / "events.csv").write_text("at,gate,who,amount\n" + "\n".join(rows))
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    assert len(letters(gates)) == 1000
    near(gates, {"north": north, "south": 0})


@pytest.mark.slow
def test_a_full_standard_output_is_a_full_disk(gates: Path, cli: Cli) -> None:
    program = Path(sys.executable).with_name("evertally")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [program, "run", "-c", gates / "run.toml", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 4
    assert b"standard output" in done.stderr
    assert b"Exception" not in done.stderr
    assert len(list(read_releases(gates / "releases.jsonl")[1])) == 12  # and what was released stays


def test_unforeseen_errors_print_no_data(gates: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ValueError("canary 918273645546")

    monkeypatch.setattr("evertally.pipelines.local.runner.run_local", broken)
    code, out, err = cli("run", "-c", gates / "run.toml")
    assert code == 1
    assert "internal error ValueError" in err
    assert "918273645546" not in out + err


def test_budget_refused_is_exit_3(gates: Path, cli: Cli) -> None:
    edit(gates, "[output]", '[budget]\nscope = "city"\nepsilon_cap = 1.0\n\n[output]')
    edit(gates, "epsilon = 1.0", "epsilon = 0.9")
    assert cli("run", "-c", gates / "run.toml")[0] == 0
    edit(gates, 'name = "gates"', 'name = "again"')
    edit(gates, '"releases.jsonl"', '"again.jsonl"')
    code, _, err = cli("run", "-c", gates / "run.toml")
    assert (code, "budget refused" in err) == (3, True)
    assert not (gates / "again.jsonl").exists()


def test_no_option_prints_a_true_total(cli: Cli) -> None:
    for command in ("run", "check-config", "plot"):
        code, out, _ = cli(command, "--help")
        assert code == 0
        options = {word for word in out.split() if word.startswith("--")}
        assert options <= {"--config", "--resume", "--against", "--out", "--json", "--log-format", "--help"}
        assert "seconds" in out


def test_root_help_and_version(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    assert all(name in out for name in ("demo", "run", "check-config", "plot", "ledger", "Exit codes"))
    assert cli("--version")[1].startswith("evertally 0.")
    code, _, err = cli("rum")
    assert (code, "run" in err) == (2, True)


@pytest.mark.slow
def test_a_folder_whose_name_is_no_text(gates: Path) -> None:
    """A result that cannot be printed must not look like a run that failed; SQLite takes no such path."""
    folder = gates / "\udcff"
    folder.mkdir()
    for name in ("run.toml", "events.csv"):
        (gates / name).rename(folder / name)
    program = "from evertally.pipelines.cli.app import main; main()"
    words = [sys.executable, "-c", program, "run", "--config", str(folder / "run.toml")]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    refused = run()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "UTF-8" in refused.stderr
    edit(folder, 'path = "state.sqlite"', f'path = "{gates / "state.sqlite"}"')
    done = run()
    assert done.returncode == 0, done.stderr
    assert "\\udcff/releases.jsonl" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("gone", ["full", "closed pipe"])
def test_an_error_that_cannot_be_said_keeps_its_exit_code(tmp_path: Path, stream: str, gone: str) -> None:
    program = "from evertally.pipelines.cli.app import main; main()"
    words = [sys.executable, "-c", program, "check-config", "--json", "--config", tmp_path / "none.toml"]
    if gone == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: target}
    done = subprocess.run(words, **streams, text=True, check=False)  # type: ignore[call-overload]
    os.close(target)
    assert done.returncode == 2
    said = done.stderr if stream == "stdout" else done.stdout
    assert "none.toml" in said
    assert "Traceback" not in said


PROGRAM = "from evertally.pipelines.cli.app import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]])
def test_pages_of_help_on_a_full_disk_say_so(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 4
    assert b"No space left" in done.stderr
    assert b"internal" not in done.stderr


@pytest.mark.slow
def test_a_reader_that_went_away_is_no_error(gates: Path) -> None:
    reader, target = os.pipe()
    os.close(reader)
    words = [sys.executable, "-c", PROGRAM, "check-config", "--config", str(gates / "run.toml")]
    done = subprocess.run(words, stdout=target, stderr=subprocess.PIPE, check=False)
    os.close(target)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.slow
def test_a_result_for_a_closed_standard_output_is_not_lost_in_silence(gates: Path) -> None:
    shell = 'exec "$0" "$@" >&-'
    words = ["-c", PROGRAM, "check-config", "--config", str(gates / "run.toml")]
    done = subprocess.run(["sh", "-c", shell, sys.executable, *words], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 4
    assert b"it is closed" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_files_do_not_take_the_numbers_of_closed_standard_ones(closed: str) -> None:
    """What a library or a signal's handler writes to standard error would stand in one of them."""
    program = (
        "import os, signal, sys, evertally.pipelines.cli.app as app;"
        "app.app = lambda: (os.open(sys.argv[1], os.O_RDWR), os.kill(os.getpid(), signal.SIGTERM));"
        "app.main()"
    )
    with tempfile.NamedTemporaryFile() as file:
        shell = f'exec "$0" -c "$1" "$2" {closed}'
        done = subprocess.run(["sh", "-c", shell, sys.executable, program, file.name], check=False)
        assert done.returncode == 143
        assert file.read() == b""
