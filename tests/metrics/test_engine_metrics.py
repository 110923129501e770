"""What a Beam job and a Flink job tell their operators: ticks, the clock and checkpoints, never a count."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.beam.direct import TICK_MS, DirectStream, run_bounded
from tests.contracts.engine_conformance import Case, Event
from tests.metrics.metrics_ledgers import samples

from evertally.errors import InvalidParameter, ServiceUnavailable
from evertally.pipelines.beam.job_metrics import JobMetrics
from evertally.pipelines.beam.per_process import close_all
from evertally.pipelines.flink import submit
from evertally.pipelines.flink.job_health import JobHealth, watch_job
from evertally.pipelines.flink.rest import FlinkRest
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.clock_guard import ClockGuard
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.ledger_reader import read_heads
from evertally.pipelines.metrics.ledger_view import open_view
from evertally.pipelines.metrics.standing import ShardHead

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HERE = Listen("127.0.0.1", 0)
START_MS = 1_700_000_000_000


class FixedClock:
    """A clock that stands still, or was set."""

    def __init__(self, now_ms: int, step_ms: int = 0) -> None:
        self._now_ms, self._step_ms = now_ms, step_ms

    def now_ms(self) -> int:
        return self._now_ms

    def wall_step_ms(self) -> int:
        return self._step_ms


def clock(t: float, step_ms: int = 0) -> ClockGuard:
    return ClockGuard(TICK_MS, lambda: FixedClock(int(START_MS + t * TICK_MS), step_ms))


@contextlib.contextmanager
def beam_metrics(read: Any, guard: ClockGuard) -> Iterator[JobMetrics]:
    with JobMetrics("visits", TickRule(START_MS, TICK_MS), HERE, guard) as metrics:
        metrics.begin(read)
        yield metrics


def own(text: bytes) -> str:
    """Without memory, CPU and garbage collection, and without times of creation."""
    kept = [line for line in text.decode().splitlines() if "evertally_" in line and "_created" not in line]
    return "\n".join(kept)


def scrape(address: str) -> str:
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        return client.get("/internal/metrics").text


def test_a_beam_job_shows_its_ticks_and_goes_on_without_a_ledger() -> None:
    heads: list[ShardHead] = [ShardHead(7, 6), ShardHead(5, 5)]

    def read() -> list[ShardHead]:
        if not heads:
            raise ServiceUnavailable("no ledger")
        return heads

    with beam_metrics(read, clock(9.5)) as metrics:
        found = samples(scrape(metrics.address))
        assert found['evertally_beam_committed_tick{shard="1",stream="visits"}'] == 5
        assert found['evertally_beam_published_tick{shard="0",stream="visits"}'] == 6
        assert found['evertally_beam_ticks_behind{stream="visits"}'] == 4
        assert found["evertally_beam_clock_trusted"] == 1
        heads.clear()
        metrics.look(read)
        found = samples(scrape(metrics.address))
        assert found['evertally_beam_committed_tick{shard="1",stream="visits"}'] == 5
        assert found['evertally_beam_look_failures_total{stream="visits"}'] >= 1
    with beam_metrics(list, clock(9.5, step_ms=10**6)) as metrics:
        assert samples(scrape(metrics.address))["evertally_beam_clock_trusted"] == 0


def counted(folder: Path, name: str, amounts: dict[str, int]) -> DirectStream:
    """A stream with that many events in its first tick, counted by a real pipeline."""
    folder.mkdir()
    if (folder.parent / "key").exists():
        (folder / "key").write_bytes((folder.parent / "key").read_bytes())
        (folder / "key").chmod(0o600)
    events = tuple(Event(1, key) for key, count in amounts.items() for _ in range(count))
    stream = DirectStream(folder, Case("metrics", events, ticks=2), name=name)
    run_bounded(stream)
    return stream


def test_neighbouring_streams_look_alike_to_a_beam_jobs_operators(tmp_path: Path) -> None:
    """The plane is byte-equal whatever was counted; a canary's exact count stands nowhere in it."""
    from evertally.pipelines.keyfile import KeyFile

    KeyFile.create(tmp_path / "key")
    texts = []
    for number, amounts in enumerate(
        ({"alpha": 4_391}, {"alpha": 4_392}, {"beta": 2_718, "gamma": 3_919}, {})
    ):
        stream = counted(tmp_path / str(number), "same", amounts)
        view = open_view(stream.ref.ledger.location)
        with beam_metrics(lambda view=view: read_heads(view, "same"), clock(9.5)) as metrics:
            texts.append(own(scrape(metrics.address).encode()))
        view.close()
        for count in amounts.values():
            assert str(count) not in texts[-1]
    assert len(set(texts)) == 1
    assert 'evertally_beam_committed_tick{shard="0",stream="visits"} 2.0' in texts[0]
    close_all()


CANARIES = (314_159_265_359, 271_828_182_849)


class FakeFlink:
    """A JobManager's REST interface in memory; its records and bytes are canaries."""

    def __init__(self) -> None:
        self.state, self.completed, self.asked = "RUNNING", 12, list[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = json.dumps(outer.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> Any:
        exact = {"read-records": CANARIES[0], "write-bytes": CANARIES[1]}
        if path == "/taskmanagers":
            return {"taskmanagers": [{"id": "a", **exact}, {"id": "b"}]}
        if path == "/jobs/overview":
            return {"jobs": [{"jid": "j1", "name": "evertally visits", "state": self.state}]}
        if path == "/jobs/j1/checkpoints":
            latest = {"trigger_timestamp": START_MS, "state_size": CANARIES[0]}
            return {"counts": {"completed": self.completed, "failed": 1}, "latest": {"completed": latest}}
        if path.startswith("/jobs/j1/metrics"):
            return [{"id": "numRestarts", "value": "3"}]
        return {"state": self.state, "vertices": [{"status": "RUNNING", "metrics": exact}]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def fake() -> Iterator[FakeFlink]:
    made = FakeFlink()
    yield made
    made.close()


def test_a_flink_jobs_health_and_nothing_that_it_counted(fake: FakeFlink) -> None:
    health = JobHealth("visits", "evertally visits", FlinkRest(fake.address))
    health.look()
    text = own(health.operators.text())
    found = samples(text)
    assert found["evertally_flink_jobmanager_up"] == 1
    assert found["evertally_flink_task_managers"] == 2
    assert found['evertally_flink_job_running{stream="visits"}'] == 1
    assert found['evertally_flink_job_restarts{stream="visits"}'] == 3
    assert found['evertally_flink_checkpoints_completed{stream="visits"}'] == 12
    assert found['evertally_flink_checkpoints_failed{stream="visits"}'] == 1
    assert found['evertally_flink_last_checkpoint_timestamp_seconds{stream="visits"}'] == START_MS / 1000
    for canary in CANARIES:
        assert str(canary) not in text
        assert f"{float(canary)}" not in text
    fake.state = "FAILING"
    health.look()
    assert samples(own(health.operators.text()))['evertally_flink_job_running{stream="visits"}'] == 0
    fake.state = "FAILED"
    health.look()
    found = samples(own(health.operators.text()))
    assert found['evertally_flink_job_running{stream="visits"}'] == 0
    assert found["evertally_flink_jobmanager_up"] == 1


def test_a_job_manager_that_is_gone_is_seen(fake: FakeFlink) -> None:
    health = JobHealth("visits", "evertally visits", FlinkRest(fake.address))
    stop = threading.Event()
    health.look()
    fake.close()
    watching = threading.Thread(target=watch_job, args=(health, HERE, stop))
    watching.start()
    stop.set()
    watching.join(30)
    assert not watching.is_alive()
    found = samples(own(health.operators.text()))
    assert found["evertally_flink_jobmanager_up"] == 0
    assert found['evertally_flink_job_running{stream="visits"}'] == 0
    assert found['evertally_flink_checkpoints_completed{stream="visits"}'] == 12


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"[]", b'{"taskmanagers": 5}', b'{"taskmanagers": [], "jobs": [7]}', b""],
)
def test_what_is_no_job_manager_is_named(answer: bytes) -> None:
    """Another server at the address, or one that breaks off, is a service that is not there."""
    body = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(65536)
                        client.sendall(answer if answer.startswith(b"SSH") else body)

        threading.Thread(target=answer_all, daemon=True).start()
        rest = FlinkRest(f"127.0.0.1:{server.getsockname()[1]}")
        health = JobHealth("visits", "evertally visits", rest)
        health.look()
        assert samples(own(health.operators.text()))["evertally_flink_jobmanager_up"] == 0
        with pytest.raises(ServiceUnavailable):
            rest.live_jobs("evertally visits")
        with pytest.raises(ServiceUnavailable):
            rest.stop("j1", "file:///savepoints")
        server.shutdown(socket.SHUT_RDWR)


def test_a_client_of_flink_that_hangs_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that outlives it holds its output open, and was waited for without end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flink").write_text("sleep 60 & echo $! > $FLINK_LOG_DIR/../child; wait\n")
    monkeypatch.setenv("FLINK_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(submit, "_CLIENT_TIMEOUT_S", 4.0)  # time enough to begin, on any machine
    began = time.monotonic()
    with pytest.raises(ServiceUnavailable, match="did not end in 4 s"):
        submit._run_client(
            submit.Cluster("127.0.0.1:1", conf=tmp_path, connector=tmp_path), submit.Start(), {}
        )
    assert time.monotonic() - began < 40
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "cmdline")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while child.read_bytes():  # it was killed, and ends when it is next on a core
            assert time.monotonic() - began < 50
            time.sleep(0.01)


def test_another_address_keeps_the_doors(tmp_path: Path) -> None:
    declared = Listen("127.0.0.1", 9466, tmp_path / "token")
    assert Listen.chosen(declared, None) is declared
    other = Listen.chosen(declared, "0.0.0.0:9467")
    assert other == Listen("0.0.0.0", 9467, tmp_path / "token")
    assert Listen.chosen(None, None) is None
    with pytest.raises(InvalidParameter, match="metrics-listen"):
        Listen.chosen(None, "9467")


@pytest.mark.prometheus
def test_names_and_types_of_the_engines_pass_promtool(fake: FakeFlink) -> None:
    health = JobHealth("visits", "evertally visits", FlinkRest(fake.address))
    health.look()
    with beam_metrics(lambda: [ShardHead(7, 6)], clock(9)) as job:
        texts = [job.operators.text(), health.operators.text()]
    for text in texts:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_every_metric_of_the_engines_is_in_the_reference(fake: FakeFlink) -> None:
    page = (ROOT / "docs" / "reference-metrics.md").read_text()
    with beam_metrics(list, clock(1)) as job:
        beam = job.operators
    for metrics in (beam, JobHealth("visits", "j", FlinkRest(fake.address)).operators):
        names = {family.name for family in metrics.registry.collect()}
        mine = {name for name in names if re.match("evertally_(beam|flink)_", name)}
        assert len(mine) >= 5
        for name in mine:
            assert name in page
