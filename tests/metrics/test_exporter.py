"""The exporter: what it shows is what was published, and looking changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import httpx
import psycopg
import pytest
from tests.metrics.metrics_ledgers import (
    SCOPE,
    START_MS,
    TICK_MS,
    Stream,
    exporting,
    opened,
    samples,
    scrape,
    settings,
    spec,
)

from evertally.accountants.budget.schema import MIGRATIONS
from evertally.counters import parse_mechanism, window_power
from evertally.errors import InvalidParameter
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.exporter import Exporter, ExporterSettings, parse_windows
from evertally.pipelines.metrics.exposition import PUBLIC_METRICS
from evertally.pipelines.metrics.ledger_view import SCHEMA_VERSIONS, open_view

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def published(stream: Stream) -> dict[tuple[str, int], dict[str, Any]]:
    lines = [json.loads(line) for sink in stream.sinks for line in sink.lines]
    return {(line["key"], line["t"]): line for line in lines}


def test_the_public_plane_shows_exactly_what_is_published(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    stream = Stream(store, key_file, spec("gates", ("north", "south", "other"), shards=2))
    stream.release([[t, 2 * t, 5] for t in range(70)])
    stream.release([[1_000_000, 0, 0]], publish=False)  # in the ledger, and not public
    with exporting(tmp_path / "ledger.db") as exporter:
        found = samples(scrape(exporter))
        internal = samples(scrape(exporter, "/internal/metrics", plane=1))
    rows = published(stream)
    for key in stream.spec.keys:
        labels = f'{{key="{key}",stream="gates"}}'
        assert found[f"evertally_released_events{labels}"] == rows[key, 70]["value"]
        assert found[f"evertally_released_events_stderr{labels}"] == rows[key, 70]["stderr"]
        for window, width in (("1h", 60), ("5m", 5)):
            windowed = f'{{key="{key}",stream="gates",window="{window}"}}'
            change = rows[key, 70]["value"] - rows[key, 70 - width]["value"]
            assert found[f"evertally_window_events{windowed}"] == change
            power = window_power(parse_mechanism("rational:W32"), 70, width)
            expected = (stream.spec.grid.sigma**2 * power + 1 / 6) ** 0.5
            assert found[f"evertally_window_events_stderr{windowed}"] == pytest.approx(expected)
    assert found['evertally_release_index{stream="gates"}'] == 70
    end_s = (START_MS + 70 * TICK_MS) / 1000
    assert found['evertally_release_timestamp_seconds{stream="gates"}'] == end_s
    assert found['evertally_tick_seconds{stream="gates"}'] == 60
    assert found['evertally_stream_live{stream="gates"}'] == 1
    status = store.scope_status(SCOPE.name)
    assert found['evertally_budget_spent_mu2{scope="visits"}'] == pytest.approx(status.spent.main * 1e-9)
    assert found['evertally_budget_cap_mu2{scope="visits"}'] == pytest.approx(status.caps.main * 1e-9)
    assert {name.partition("{")[0] for name in found} == {f"evertally_{name}" for name in PUBLIC_METRICS}
    assert internal['evertally_exporter_committed_tick{shard="1",stream="gates"}'] == 71
    assert internal['evertally_exporter_unpublished_ticks{shard="1",stream="gates"}'] == 1
    store.close()


def test_a_first_window_is_the_total_itself(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    stream = Stream(
        store, key_file, spec("gates", ("north",), mu=0.8)
    )  # little noise, so that rounding shows
    stream.release([[1]] * 4)
    with exporting(tmp_path / "ledger.db") as exporter:
        assert "evertally_window_events{" not in scrape(exporter)
        stream.release([[1]])
        exporter.look()
        found = samples(scrape(exporter))
    window = 'evertally_window_events{key="north",stream="gates",window="5m"}'
    assert found[window] == found['evertally_released_events{key="north",stream="gates"}']
    errors = (
        found[series.replace("events{", "events_stderr{")]
        for series in (window, 'evertally_released_events{key="north",stream="gates"}')
    )
    assert next(errors) == pytest.approx(next(errors), rel=1e-5), "it was rounded once, not twice"
    store.close()


@pytest.mark.prometheus
def test_names_and_types_pass_promtool(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates", ('quo"te', "back\\slash", "new\nline", "ü"))).release(
        [[1] * 4] * 60
    )
    with exporting(tmp_path / "ledger.db") as exporter:
        for plane, path in enumerate(("/metrics", "/internal/metrics")):
            text = scrape(exporter, path, plane)
            done = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), path
    store.close()


def digests(folder: Path) -> dict[str, str]:
    """Of everything that holds data; the -shm file is an index of locks."""
    paths = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_scrapes_change_nothing(tmp_path: Path) -> None:
    """1,000 scrapes: no byte of ledger, noise position or keys, and always the same answer."""
    store, key_file = opened(tmp_path)
    stream = Stream(store, key_file, spec("gates"))
    stream.release([[3, 4]] * 10)
    before = digests(tmp_path)
    assert "ledger.db-wal" in before
    with exporting(tmp_path / "ledger.db", refresh_s=0.01) as exporter:
        with httpx.Client(
            base_url=exporter.addresses[0], trust_env=False, timeout=60, verify=False
        ) as client:
            seen = {client.get("/metrics").content for _ in range(1000)}
            pages = {client.get("/").content for _ in range(100)}
        assert len(seen) == len(pages) == 1
        assert digests(tmp_path) == before
        stream.release([[3, 4]])
        exporter.look()
        assert scrape(exporter).encode() not in seen
    store.close()


MASK = re.compile(r"(?m)^(evertally_(?:released|window)_events\{.*\}) .*$")
PAGE_MASK = re.compile(r"<strong>[^<]*</strong>|last \w+</span> [^<]+<span")


def test_neighbouring_streams_differ_in_released_values_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 pairs of streams, each pair one event apart, under one noise key and one identity each."""
    chance = random.Random(7)
    pairs = []
    for number in range(200):
        width = chance.choice((1, 2, 3))
        base = [[chance.randrange(2000) for _ in range(width)] for _ in range(6)]
        tick, column = chance.randrange(6), chance.randrange(width)
        neighbour = [list(row) for row in base]
        neighbour[tick][column] += 1
        pairs.append((f"pair-{number:03d}", base, neighbour, column))
    texts, pages, headers, values = [], [], [], []
    for side in (0, 1):
        folder = tmp_path / str(side)
        folder.mkdir()
        if side:
            (folder / "key").write_bytes((tmp_path / "0" / "key").read_bytes())
            (folder / "key").chmod(0o600)
        identities = iter(range(1, 1000))
        fixed = SimpleNamespace(urandom=lambda size, n=identities: next(n).to_bytes(size, "big"))
        with monkeypatch.context() as patched:
            patched.setattr("evertally.accountants.budget.streams.os", fixed)
            store, key_file = opened(folder)
            for name, *data, _ in pairs:
                keys = [f"k{i}" for i in range(len(data[0][0]))]
                Stream(store, key_file, spec(name, keys, mu=0.03)).release(data[side])
            store.close()
        with (
            exporting(folder / "ledger.db", series_max=100_000) as exporter,
            httpx.Client(base_url=exporter.addresses[0], trust_env=False, timeout=60, verify=False) as client,
        ):
            answers = [client.get(path) for path in ("/metrics", "/", "/healthz", "/readyz", "/nothing")]
        texts.append(answers[0].text)
        pages.append(answers[1].text)
        headers.append(
            [{k: v for k, v in a.headers.items() if k not in ("date", "content-length")} for a in answers]
        )
        values.append(samples(answers[0].text))
    assert MASK.sub(r"\1", texts[0]).encode() == MASK.sub(r"\1", texts[1]).encode()
    assert PAGE_MASK.sub("", pages[0]).encode() == PAGE_MASK.sub("", pages[1]).encode()
    assert headers[0] == headers[1]
    assert texts[0] != texts[1]
    for name, base, _, changed in pairs:  # the same noise: the totals differ by the one event exactly
        for column in range(len(base[0])):
            series = f'evertally_released_events{{key="k{column}",stream="{name}"}}'
            assert values[1][series] - values[0][series] == (column == changed)


def test_a_scrape_never_waits_for_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates")).release([[1, 2]])
    with exporting(tmp_path / "ledger.db", refresh_s=0.01) as exporter:
        before = scrape(exporter)
        entered, free = threading.Event(), threading.Event()
        read = exporter._reader.read

        def hanging() -> Any:
            entered.set()
            free.wait(60)
            return read()

        monkeypatch.setattr(exporter._reader, "read", hanging)
        assert entered.wait(30)
        assert scrape(exporter) == before
        free.set()
    store.close()


def test_a_look_waits_for_no_writer(tmp_path: Path) -> None:
    """A releaser's open transaction: its rows do not show, and nobody waits for anybody."""
    store, key_file = opened(tmp_path)
    stream = Stream(store, key_file, spec("gates"))
    stream.release([[1, 2]])
    with exporting(tmp_path / "ledger.db") as exporter:
        before = scrape(exporter)
        writer = apsw.Connection(str(tmp_path / "ledger.db"))
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE head SET published_t = 0")
        exporter.look()
        assert scrape(exporter) == before
        writer.execute("ROLLBACK")
        writer.close()
        stream.release([[1, 2]])
        exporter.look()
        assert scrape(exporter) != before
    store.close()


def test_too_many_series_are_refused_whole_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("small", ("a",))).release([[1]])
    Stream(store, key_file, spec("large", [f"k{i}" for i in range(100)])).release([[1] * 100])
    Stream(store, key_file, spec("late", ("b",))).release([[1]])
    with exporting(tmp_path / "ledger.db", series_max=60) as exporter:
        text = scrape(exporter)
        page = scrape(exporter, "/")
    found = samples(text)
    assert 'stream="large"' not in text
    assert 'evertally_released_events{key="a",stream="small"}' in found
    assert 'evertally_released_events{key="b",stream="late"}' in found
    assert found['evertally_exporter_refused{kind="stream"}'] == 1
    assert found["evertally_exporter_series"] <= found["evertally_exporter_series_limit"] == 60
    assert "limit of 60 series" in page
    shown = sum(name.startswith("evertally_") and "{" in name for name in found) - 2  # the two refusals
    assert shown <= found["evertally_exporter_series"]
    assert any("1 streams" in record.message and "large" in record.message for record in caplog.records)
    store.close()


def test_a_ledger_that_goes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.db"
    with exporting(path, refresh_s=100) as exporter:
        assert samples(scrape(exporter))["evertally_ledger_up"] == 0
        assert httpx.get(exporter.addresses[0] + "/readyz", trust_env=False, timeout=60).status_code == 503
        assert httpx.get(exporter.addresses[0] + "/healthz", trust_env=False, timeout=60).status_code == 200
        assert f"no ledger is there, or it may not be read: {path}" in caplog.text
        store, key_file = opened(tmp_path)
        stream = Stream(store, key_file, spec("gates"))
        stream.release([[1, 2]])
        exporter.look()
        good = scrape(exporter)
        assert samples(good)["evertally_ledger_up"] == 1
        store.close()
        path.rename(tmp_path / "away")
        exporter.look()
        assert scrape(exporter) == good.replace("evertally_ledger_up 1.0", "evertally_ledger_up 0.0")
        assert "cannot be read now" in scrape(exporter, "/")
        (tmp_path / "away").rename(path)
        exporter.look()
        assert scrape(exporter) == good


def test_a_ledger_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    """Through its old handle a file that was moved away is read for ever, and the heads of both are alike."""
    path = tmp_path / "ledger.db"
    stores = []
    for folder, name in ((tmp_path, "gates"), (tmp_path / "backup", "doors")):
        folder.mkdir(exist_ok=True)
        store, key_file = opened(folder)
        Stream(store, key_file, spec(name)).release([[1, 2]])
        stores.append(store)
    with exporting(path, refresh_s=100) as exporter:
        assert samples(scrape(exporter))['evertally_release_index{stream="gates"}'] == 1
        assert 'stream="gates"' in scrape(exporter, "/internal/metrics", plane=1)
        for store in stores:
            store.close()
        for part in tmp_path.glob("ledger.db*"):
            part.rename(tmp_path / f"away-{part.name}")
        (tmp_path / "backup" / "ledger.db").rename(path)
        exporter.look()
        found = samples(scrape(exporter))
        assert found["evertally_ledger_up"] == 1
        assert found['evertally_release_index{stream="doors"}'] == 1
        assert 'evertally_release_index{stream="gates"}' not in found
        internal = scrape(exporter, "/internal/metrics", plane=1)
        assert 'stream="doors"' in internal
        assert 'stream="gates"' not in internal  # its unpublished ticks would be alerted on for ever


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE released SET stderr = 'much'",
        "UPDATE released SET tick_end_ms = 'noon'",
        "UPDATE released SET tick_end_ms = 9223372036854775807",
        "UPDATE head SET published_t = 'x', t = 'y', folded_t = 'a'",
        "UPDATE scope SET main = 'zz', cap_main = 'zzz'",
        "UPDATE scope SET cap_main = x'00'",
        "UPDATE scope SET definition = json_set(definition, '$.order', 0)",
        "UPDATE stream SET name = x'ff'",
        "UPDATE incarnation_key SET key_name = x'ff'",
    ],
)
def test_a_damaged_row_is_a_ledger_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates")).release([[1, 2]])
    store.close()
    file = apsw.Connection(str(tmp_path / "ledger.db"))
    for (trigger,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        file.execute(f"DROP TRIGGER {trigger}")
    file.pragma("ignore_check_constraints", True)
    file.execute(damage)
    file.close()
    with exporting(tmp_path / "ledger.db") as exporter:
        assert samples(scrape(exporter))["evertally_ledger_up"] == 0
        assert "cannot be read now" in scrape(exporter, "/")


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    foreign.write_bytes(b"this is no database" * 100)
    with exporting(foreign) as exporter:
        assert samples(scrape(exporter))["evertally_ledger_up"] == 0
    store, _ = opened(tmp_path)
    store.close()
    file = apsw.Connection(str(tmp_path / "ledger.db"))
    file.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
    file.close()
    with exporting(tmp_path / "ledger.db") as exporter:
        assert samples(scrape(exporter))["evertally_ledger_up"] == 0


def test_the_known_schema_versions_are_the_ledgers() -> None:
    assert tuple(str(version) for version in range(1, len(MIGRATIONS) + 1)) == SCHEMA_VERSIONS


def test_a_new_incarnation_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates")).release([[1000, 2]] * 3)
    store.open_stream(spec("gates").record(), spec("gates").charge())
    with exporting(tmp_path / "ledger.db") as exporter:
        found = samples(scrape(exporter))
        assert found['evertally_stream_incarnation{stream="gates"}'] == 2
        assert found['evertally_release_index{stream="gates"}'] == 0
        assert 'evertally_released_events{key="north",stream="gates"}' not in found
        Stream(store, key_file, spec("gates")).release([[5, 6]])
        exporter.look()
        assert samples(scrape(exporter))['evertally_release_index{stream="gates"}'] == 1
    store.close()


def test_settings_are_checked_by_name(tmp_path: Path) -> None:
    for wrong in ("", "1", "h", "0h", "1w", "1.5h", "١h"):
        with pytest.raises(InvalidParameter):
            parse_windows((wrong,))
    local = Listen("127.0.0.1", 9464)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("internal_listen", {"internal": local}),
        ("token_file", {"internal": Listen("0.0.0.0", 0)}),
        ("refresh_s", {"refresh_s": float("nan")}),
        ("series_max", {"series_max": 0}),
    ]
    for field, change in cases:
        with pytest.raises(InvalidParameter) as caught:
            ExporterSettings(**{"public": local, "internal": Listen("127.0.0.1", 9465), **change})
        assert caught.value.field == field
    with pytest.raises(InvalidParameter):
        open_view("")


PROBE = """
import gc, json, sys
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.exporter import Exporter, ExporterSettings
exporter = Exporter(sys.argv[1], ExporterSettings(Listen("127.0.0.1", 0), Listen("127.0.0.1", 0)))
exporter.start()
print(json.dumps({
    "modules": [name for name in sys.modules if name.startswith("evertally.")],
    "objects": sorted({f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects()
                       if str(type(o).__module__).startswith("evertally.")}),
}))
exporter.close()
"""
WRITE_METHODS = {
    "charge",
    "reserve",
    "commit_ticks",
    "commit_charge",
    "open_stream",
    "acquire",
    "mark_published",
    "fold",
}


def test_the_process_has_neither_keys_nor_a_way_to_write(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates")).release([[1, 2]] * 3)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "ledger.db")], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    forbidden = ("evertally.accountants.budget", "evertally.pipelines.keyfile", "evertally.pipelines.sealing",
                 "evertally.pipelines.releaser", "evertally.pipelines.kafka")  # fmt: skip
    assert [name for name in found["modules"] if name.startswith(forbidden)] == []
    secrets = ("NoiseKey", "KeyedNoise", "KeyFile", "CounterBank", "SqlLedger", "Writer", "Sealer")
    assert [name for name in found["objects"] if name.rpartition(".")[2] in secrets] == []
    for thing in (open_view(str(tmp_path / "ledger.db")), Exporter(str(tmp_path / "ledger.db"), settings())):
        assert not WRITE_METHODS & set(dir(thing))
    store.close()


def test_the_command_holds_the_ledger_read_only_and_no_key_file(tmp_path: Path) -> None:
    store, key_file = opened(tmp_path)
    Stream(store, key_file, spec("gates")).release([[1, 2]] * 3)
    for secret in ("key", "ledger.db.chainkey"):
        (tmp_path / secret).chmod(0)
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("evertally")), "exporter", "--listen", "127.0.0.1:0",
              "--internal-listen", "127.0.0.1:0", "--log-format", "json"],
        env={**os.environ, "EVERTALLY_LEDGER": str(tmp_path / "ledger.db")},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "listens" in line)
        public, internal = re.findall(r"http://[0-9.:]+", json.loads(said)["message"])
        assert (
            "evertally_released_events{" in httpx.get(public + "/metrics", trust_env=False, timeout=60).text
        )
        assert httpx.get(public + "/internal/metrics", trust_env=False, timeout=60).status_code == 404
        assert httpx.get(internal + "/metrics", trust_env=False, timeout=60).status_code == 404
        assert (
            "here is /healthz, /internal/metrics"
            in httpx.get(internal + "/", trust_env=False, timeout=60).text
        )
        files = {}
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a scrape's socket that has just been closed
                files[link.name] = os.readlink(link)
        held = {fd: path for fd, path in files.items() if path.startswith(str(tmp_path))}
        assert not [path for path in held.values() if "key" in Path(path).name]
        database = [fd for fd, path in held.items() if path.endswith(".db")]  # SQLite opens -wal by itself
        assert database
        for fd in database:
            flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{process.pid}/fdinfo/{fd}").read_text())
            assert flags is not None
            assert int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY, held[fd]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        store.close()


@pytest.mark.postgres
def test_postgresql_under_a_role_that_may_only_read(tmp_path: Path, postgres_address: str) -> None:
    store, key_file = opened(tmp_path, postgres_address)
    stream = Stream(store, key_file, spec("gates"))
    stream.release([[1, 2]] * 70)
    script = (ROOT / "deploy" / "postgres" / "exporter-role.sql").read_text()
    role = f"reader_{os.getpid()}"
    with psycopg.connect(postgres_address, autocommit=True) as admin:
        schema = admin.execute("SELECT current_schema()").fetchone()
        assert schema is not None
        script = script.replace("evertally_exporter", role).replace("SCHEMA public", f"SCHEMA {schema[0]}")
        admin.execute(script.encode())
    reader = postgres_address.replace("postgres@", f"{role}@")
    try:
        with exporting(reader, refresh_s=0.05) as exporter:
            text = scrape(exporter)
            rows = published(stream)
            series = 'evertally_released_events{key="north",stream="gates"}'
            assert samples(text)[series] == rows["north", 70]["value"]
            assert 'window="1h"' in text
            stream.release([[50, 60]])
            deadline = time.monotonic() + 30
            while samples(scrape(exporter))['evertally_release_index{stream="gates"}'] < 71:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with psycopg.connect(reader, autocommit=True) as client:
            client.execute("SET default_transaction_read_only = off")  # the grants alone must hold
            for forbidden in (
                "SELECT sealed FROM head",
                "SELECT * FROM charge",
                "SELECT stream_id FROM incarnation",
                "UPDATE head SET t = 0",
                "INSERT INTO meta (name, value) VALUES ('a', 'b')",
                "DELETE FROM released",
                "CREATE TABLE mine (a int)",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(forbidden.encode())
    finally:
        store.close()
        with psycopg.connect(postgres_address, autocommit=True) as admin:
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


def test_every_public_metric_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference-metrics.md").read_text()
    for name in PUBLIC_METRICS:
        assert f"`evertally_{name}`" in page
