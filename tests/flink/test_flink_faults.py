"""What may not change a release: kills, replays held back, savepoints, rescaling, a lost JobManager."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest
from kafka_harness import KEYS, wait_until
from tests.contracts.late_events import LateEvents
from tests.faults.canary_search import files, leaks, processes
from tests.flink.flink_harness import FlinkStream, replace_task_manager
from tests.metrics.metrics_ledgers import samples

from evertally.accountants.budget.opening import open_ledger
from evertally.errors import IntegrityError
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.flink.job_health import JobHealth
from evertally.pipelines.flink.local_cluster import LocalFlink
from evertally.pipelines.flink.submit import job_name
from evertally.pipelines.kafka.config import load_worker_config

pytestmark = [pytest.mark.flink, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1500)]


def limit_reading(servers: str, clients: list[str], bytes_a_second: int | None) -> None:
    """Have the broker throttle consumers by their client id, or no more."""
    entry = AlterClientQuotasRequest.EntryData
    change = entry.OpData(
        key="consumer_byte_rate", value=float(bytes_a_second or 0), remove=bytes_a_second is None
    )
    entries = [
        entry(entity=[entry.EntityData(entity_type="client-id", entity_name=client)], ops=[change])
        for client in clients
    ]
    admin = KafkaAdminClient(bootstrap_servers=servers)
    answer = admin._manager.run(
        admin._manager.send, AlterClientQuotasRequest(entries=entries, validate_only=False)
    )
    admin.close()
    assert [entry.error_code for entry in answer.entries] == [0] * len(clients)


def completed(cluster: LocalFlink, job: str) -> int:
    return int(cluster.rest.checkpoints(job)["counts"]["completed"])


def checkpoint(cluster: LocalFlink, job: str, which: str) -> int:
    """Number of the last checkpoint that was completed, or restored."""
    return int(cluster.rest.checkpoints(job)["latest"][which]["id"])


def test_a_replay_that_is_held_back_takes_nothing_back(
    servers: str, tmp_path: Path, flink: LocalFlink
) -> None:
    """Kill, restore, hold the replay, let the clock close ticks: x_t = S_t - S_(t-1) is never negative."""
    stream = FlinkStream(servers, tmp_path, checkpoint_s=6.0)
    stream.make_topics()
    job = stream.submit(flink, "--from", "earliest")
    clients = [f"{stream.name}.flink-1-{subtask}" for subtask in range(2)]
    sent: Counter[str] = Counter()
    with stream.releaser():
        stream.send({"k": key} for key in KEYS * 50)
        sent.update(KEYS * 50)
        stream.wait_totals(sent, 400)
        for _ in range(5):
            done = completed(flink, job)
            wait_until("a checkpoint", lambda: completed(flink, job) > done, 120, 0.1)  # noqa: B023
            before, last = sent.copy(), checkpoint(flink, job, "completed")
            stream.send({"k": key} for key in KEYS * 70)
            time.sleep(3)  # they are read, ticks that hold them close, and no checkpoint has come
            unseen = len(stream.raw("closed", "read_uncommitted")) - len(stream.raw("closed"))
            limit_reading(servers, clients, 1)
            replace_task_manager(flink)
            stream.wait_running(flink, job)
            stream.wait_tick(stream.tick_now())  # the clock closes ticks behind the restored state
            held, restored = stream.totals(), checkpoint(flink, job, "restored")
            limit_reading(servers, clients, None)
            for _ in range(2):  # clients that were throttled wait for hours; new ones do not
                replace_task_manager(flink)
            sent.update(KEYS * 70)
            stream.wait_totals(sent, 400)
            if restored == last:
                break  # else a busy machine let a checkpoint come before the kill: there was no replay
        stream.stop(flink)
    assert restored == last, "no kill hit the job between a checkpoint and the next one"
    stream.judge()  # no total ever fell, every (key, t) has one value
    for key, totals in stream.exact().items():
        assert min(late - early for early, late in itertools.pairwise([0, *totals])) >= 0
        assert held[key] == before[key], (
            "the replay was held back, so what was rolled back is not in a release"
        )
    assert unseen > 0, "closings were written before the kill and never committed"


def test_savepoint_other_parallelism_and_a_lost_job_manager(
    servers: str, tmp_path: Path, flink: LocalFlink
) -> None:
    """Sums of an unusual large integer: none stands in a checkpoint, log or answer of the cluster."""
    worth = 73_456_789
    stream = FlinkStream(
        servers,
        tmp_path,
        shards=2,
        parallelism=1,
        source_extra='value = "n"',
        privacy_extra=f'unit = "event"\nclip = {worth + 1}',
        epsilon=8.0,
    )
    stream.make_topics()
    refused = stream.flink(flink, "submit", check=False)
    assert refused["exit"] == 2, "a first start says where to begin"
    sent: Counter[str] = Counter()

    def send(times: int) -> None:
        stream.send({"k": key, "n": worth} for key in KEYS * times)
        sent.update(dict.fromkeys(KEYS, times * worth))

    stream.parallelism = 2  # one writer a shard
    job = stream.submit(flink, "--from", "earliest")
    with stream.releaser():
        send(10)
        stream.send([None, b"{"])  # no events, and no reason to fail
        stream.wait_totals(sent, 400)
        refused = stream.flink(flink, "submit", check=False)
        assert refused["exit"] == 2, "two jobs of one stream"
        savepoint = stream.stop(flink)
        refused = stream.flink(flink, "submit", check=False)
        assert refused["exit"] == 2, "a job without its state would count again"
        assert "--restore" in refused["message"]
        send(5)
        stream.parallelism = 1
        job = stream.submit(flink, "--restore", savepoint)
        send(5)
        stream.wait_totals(sent, 400)
        done = completed(flink, job)
        wait_until("a checkpoint", lambda: completed(flink, job) > done, 120, 0.2)
        flink.kill_job_manager()
        send(3)
        flink.start_job_manager()
        stream.parallelism = 2
        job = stream.submit(flink, "--restore", str(flink.checkpoints / job))
        send(2)
        stream.wait_totals(sent, 400)
        assert_nothing_leaks(stream, flink, job, worth)
        stream.stop(flink)
    assert stream.judge() > 10
    codes = [json.loads(record.value)["code"] for record in stream.raw("dead-letters")]
    assert sorted(codes) == ["malformed", "record_empty"]


def assert_nothing_leaks(stream: FlinkStream, cluster: LocalFlink, job: str, worth: int) -> None:
    config = load_worker_config(stream.config())
    keys = AggregationKeys.open(config.key_file.with_name(config.key_file.name + ".aggregation"))
    secrets: dict[str, int | bytes | str] = {
        "noise key": config.key_file.read_bytes()[16:48],
        "closing key": keys.closing,
        "unit key": keys.unit,
        "dead letter key": keys.dead_letter,
        **{f"the sum of {n}": n * worth for n in range(1, 60)},
    }
    state = cluster.rest.get(f"/jobs/{job}/config"), cluster.rest.get(f"/jobs/{job}/plan")
    places = [("job", json.dumps(state).encode()), ("logs", cluster.logs().encode())]
    places += [*files(cluster.checkpoints), *files(cluster.savepoints)]
    assert len(places) > 2, "there are checkpoints"
    health = JobHealth(stream.name, job_name(config), cluster.rest)
    health.look()
    places.append(("metrics", health.operators.text()))
    shown = samples(health.operators.text().decode())
    assert shown[f'evertally_flink_job_running{{stream="{stream.name}"}}'] == 1
    assert shown[f'evertally_flink_checkpoints_completed{{stream="{stream.name}"}}'] >= 1
    assert shown["evertally_flink_task_managers"] >= 1
    places += processes(*(cluster.pid(number) for number in cluster.task_managers))
    assert leaks(secrets, places) == []


@pytest.mark.soak
def test_a_state_that_is_too_old_stops_the_releaser(servers: str, tmp_path: Path, flink: LocalFlink) -> None:
    """An operator restores the wrong savepoint: the lanes repeat themselves, nothing of it is released."""
    stream = FlinkStream(servers, tmp_path)
    stream.make_topics()
    stream.submit(flink, "--from", "earliest")
    with pytest.raises(AssertionError), stream.releaser() as running:  # noqa: PT012 - its end raises
        stream.send({"k": key} for key in KEYS * 5)
        stream.wait_totals(Counter(KEYS * 5), 400)
        old = stream.stop(flink)
        job = stream.submit(flink, "--restore", old)
        stream.wait_tick(stream.tick_now() + 2)
        flink.rest.cancel(job)
        wait_until("the job has ended", lambda: flink.rest.job(job)["state"] == "CANCELED", 60)
        stream.submit(flink, "--restore", old)
        wait_until("the releaser refuses it", lambda: running.error, 400)
    assert isinstance(running.error, IntegrityError)
    stream.judge()


@pytest.mark.soak
def test_late_and_early_events_by_their_own_time(servers: str, tmp_path: Path, flink: LocalFlink) -> None:
    """Out of order within the lateness: each in its own tick. Later ones: the earliest open one."""
    stream = FlinkStream(
        servers,
        tmp_path,
        tick_s=1.0,
        start_ms=(time.time_ns() // 10**9 - 300) * 1000,
        stream_extra='closing = "event-time"\nlateness_s = 30\nskew_s = 20',
        source_extra='timestamp = "at"',
    )
    stream.make_topics()
    stream.submit(flink, "--from", "earliest")
    with stream.releaser():
        now = stream.tick_now()
        sent = LateEvents(stream.start_ms, now - 5, now - 31, now + 60)
        stream.feed(sent.events)
        stream.wait_counted()
        stream.wait_tick(now)
        stream.stop(flink)
    letters = [record.value for record in stream.raw("dead-letters")]
    fences = [letter for letter in letters if json.loads(letter)["code"] == "malformed"]
    assert len(fences) == stream.partitions
    sent.verify(stream.exact(), (letter for letter in letters if letter not in fences))


def test_workers_hold_no_noise_key(tmp_path: Path, servers: str) -> None:
    """The file they get holds three derived keys; from those no noise can be drawn."""
    stream = FlinkStream(servers, tmp_path)
    config = load_worker_config(stream.config())
    from evertally.pipelines.keyfile import KeyFile

    key_file = KeyFile.open_or_create(config.key_file)
    store = open_ledger(config.ledger)
    store.create_scope(config.spec.scope)
    opened = store.open_stream(config.spec.record(), config.spec.charge())
    store.close()
    path = tmp_path / "keys"
    AggregationKeys.derive(key_file, opened).write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    data = path.read_bytes()
    assert config.key_file.read_bytes()[16:48] not in data
    read = AggregationKeys.open(path)
    assert read.closing == key_file.derive("closing", opened.name, opened.stream_id, opened.incarnation)
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b"x" + data[1:]):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            AggregationKeys.open(path)
