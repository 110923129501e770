"""A worker as a service: topics, probes, signals, clock, security, canary."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import jsonschema_rs
import pytest
from kafka import KafkaAdminClient
from kafka_harness import KEYS, InThread, KafkaStream, evertally, read_topic, wait_until
from tests.faults.canary_search import files, leaks, processes

from evertally.errors import InvalidParameter
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.kafka.local_broker import LocalCluster
from evertally.pipelines.kafka.topics import check_topics
from evertally.pipelines.kafka.worker import Worker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def check(stream: KafkaStream) -> int:
    declared = load_worker_config(stream.config())
    return check_topics(
        declared.broker,
        declared.topics,
        shards=stream.shards,
        by_unit=False,
        max_request_bytes=declared.max_request_bytes,
    ).events


def test_topics_are_created_once_and_checked(servers: str, tmp_path: Path) -> None:
    stream = KafkaStream(servers, tmp_path)
    with pytest.raises(InvalidParameter, match="topics create"):
        check(stream)
    created = json.loads(stream.cli("topics", "create", "--json").stdout)["created"]
    assert sorted(created) == [f"{stream.name}.{part}" for part in ("closed", "dead-letters", "releases")]
    assert json.loads(stream.cli("topics", "create", "--json").stdout)["created"] == []
    assert check(stream) == 3
    admin = KafkaAdminClient(bootstrap_servers=servers)
    from kafka.admin import ConfigResource, ConfigResourceType

    for name, setting, value, back in (
        ("releases", "retention.ms", "1000", "-1"),
        ("closed", "max.message.bytes", "5000", "1000000"),
        ("closed", "cleanup.policy", "compact", "delete"),
        ("closed", "retention.ms", "1000", "86400000"),
    ):
        topic = f"{stream.name}.{name}"
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {setting: value})])
        with pytest.raises(InvalidParameter, match=re.escape(f"{topic} {setting}")):
            wait_until("the check fails", lambda: check(stream) and None)
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {setting: back})])
        wait_until("the check passes", lambda: _passes(stream))
    admin.close()
    stream.shards = 2
    with pytest.raises(InvalidParameter, match="partitions"):
        check(stream)


def _passes(stream: KafkaStream) -> bool:
    try:
        return check(stream) == 3
    except InvalidParameter:
        return False


def test_probes_signals_and_json_logs(stream: KafkaStream) -> None:
    worker = stream.start(begin="latest")
    assert worker.get("/healthz") == (200, {"aggregate": True, "release": True})
    assert worker.get("/readyz")[1] == {"aggregate": True, "release": True, "ledger": True, "clock": True}
    assert worker.get("/nothing")[0] == 404
    stream.send({"k": key} for key in KEYS)
    stream.wait_totals(Counter(KEYS))
    ticks = stream.judge()
    wait_until("empty ticks are released too", lambda: stream.judge() >= ticks + 2)
    assert worker.end() == 0
    schema = json.loads((resources.files("evertally.pipelines") / "schemas/release.schema.json").read_text())
    check_line = jsonschema_rs.validator_for(schema)
    for record in stream.raw("releases"):
        check_line.validate(json.loads(record.value))
    for line in worker.log.read_text().splitlines():
        if line.startswith("{"):
            assert {"level", "message"} <= json.loads(line).keys()


def test_a_second_signal_stops_at_once_and_loses_nothing(stream: KafkaStream) -> None:
    worker = stream.start(begin="earliest")
    stream.send({"k": key} for key in KEYS * 5)
    worker.signal(signal.SIGTERM)
    time.sleep(0.05)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(30) in (0, 128 + signal.SIGTERM)
    stream.start()
    stream.wait_totals(Counter(KEYS * 5))
    stream.judge()


def test_no_secret_appears_anywhere(servers: str, tmp_path: Path) -> None:
    """Canaries: exact sums of 12 digits, names of units, keys; in no topic, file, log, argument or answer."""
    clip = 2**31
    amounts = {key: 314_159_265_358 + 7_919_000 * n for n, key in enumerate(KEYS)}
    stream = KafkaStream(
        servers,
        tmp_path,
        source_extra='value = "v"\nunit = "who"',
        privacy_extra=f'unit = "person"\nparticipations = 1\nclip = {clip}',
        epsilon=100.0,
    )
    stream.make_topics()
    parts = {key: [clip] * (amount // clip) + [amount % clip] for key, amount in amounts.items()}
    events = [{"k": key, "v": part} for key, found in parts.items() for part in found]
    units = [f"passport-{2_718_281_828 + number}" for number in range(len(events))]
    try:
        worker = stream.start(begin="earliest")
        worker.end()
        words = ["worker", "--config", str(stream.config("w1", worker.port)), "--log-level", "debug"]
        worker = type(worker)(words, worker.port, stream.folder / "debug.log")
        stream.workers.append(worker)
        worker.wait_ready()
        stream.send({**event, "who": unit} for event, unit in zip(events, units, strict=True))
        stream.send([b'{"k":"alpha","v":1,"who":["passport-1618033988749"]}'])
        stream.wait_totals(amounts)
        places = [*processes(worker.process.pid)]
        answers = [worker.get(path) for path in ("/healthz", "/readyz", "/nothing")]
        assert worker.end() == 0
        places += [("answers", repr(answers).encode())]
        places += [*files(stream.folder, besides=[f"{stream.name}.key", f"{stream.name}.ledger.chainkey"])]
        admin = KafkaAdminClient(bootstrap_servers=servers)
        topics = [name for name in admin.list_topics() if name.startswith(f"{stream.name}.")]
        admin.close()
        for topic in sorted(set(topics) - {stream.topic}):
            records = read_topic(servers, topic, "read_uncommitted")
            places += [(topic, (record.key or b"") + b" " + (record.value or b"")) for record in records]
        searched = {place for place, data in places if data}
        for suffix in ("ledger", "units", "unit-state", "closed", "releases", "dead-letters"):
            assert f"{stream.name}.{suffix}" in searched
        assert "debug.log" in searched
        keys = (stream.folder / f"{stream.name}.key").read_bytes()[16:48]
        chain = (stream.folder / f"{stream.name}.ledger.chainkey").read_bytes()
        secrets: dict[str, int | bytes | str] = {"key": keys, "chain key": chain, "refused": "1618033988749"}
        secrets |= {f"total of {key}": amount for key, amount in amounts.items()}
        secrets |= {unit: unit for unit in units[::9]}
        assert leaks(secrets, places) == []
        stream.judge()
    finally:
        stream.close()


@pytest.fixture(scope="module")
def secure(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """A broker that speaks SASL_SSL only, with a certificate of its own authority."""
    folder = tmp_path_factory.mktemp("secure")
    make_certificates(folder)
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    extra = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.client.scram-sha-256.sasl.jaas.config": jaas,
    }
    logs = tmp_path_factory.mktemp("secure-broker")
    with LocalCluster(
        kafka_jars, logs, extra=extra, scram={"worker": "right-password"}, listener="SASL_SSL"
    ) as cluster:
        yield cluster, folder


def make_certificates(folder: Path) -> None:
    """An authority and a broker certificate for 127.0.0.1, PEM."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    now = datetime.datetime.now(datetime.UTC)

    def make(
        name: str, issuer: x509.Name | None, signer: rsa.RSAPrivateKey | None
    ) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
            )
        )
        return built.sign(signer or key, hashes.SHA256()), key

    authority, authority_key = make("test authority", None, None)
    broker, broker_key = make("broker", authority.subject, authority_key)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    key_bytes = broker_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "broker.pem").write_bytes(key_bytes + broker.public_bytes(pem) + authority.public_bytes(pem))
    other, _ = make("another authority", None, None)
    (folder / "other-ca.pem").write_bytes(other.public_bytes(pem))


def secure_config(tmp_path: Path, cluster: LocalCluster, ca_file: Path) -> Path:
    config = tmp_path / "worker.toml"
    config.write_text(
        f"""
[stream]
name = "secured"
keys = ["a"]
start = "{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}"
tick_s = 0.5
[source]
key = "k"
[privacy]
epsilon = 1.0
delta = 1e-6
[state]
path = "secured.ledger"
key_file = "secured.key"
[kafka]
bootstrap_servers = "{cluster.bootstrap_servers}"
topic = "secured.events"
security_protocol = "SASL_SSL"
ca_file = "{ca_file}"
sasl_mechanism = "SCRAM-SHA-256"
username = "worker"
"""
    )
    return config


def test_tls_and_scram(secure: tuple[LocalCluster, Path], tmp_path: Path) -> None:
    cluster, folder = secure
    good = Broker(
        cluster.bootstrap_servers,
        "SASL_SSL",
        ca_file=folder / "ca.pem",
        sasl_mechanism="SCRAM-SHA-256",
        username="worker",
        password="right-password",
    )
    admin = good.admin()
    admin.create_topics(
        {"secured.events": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True
    )
    admin.close()
    assert "right-password" not in repr(good)
    config = secure_config(tmp_path, cluster, folder / "ca.pem")
    declared = load_worker_config(config, {"EVERTALLY_KAFKA_PASSWORD": "right-password"})
    from evertally.pipelines.kafka.topics import create_topics

    create_topics(declared.broker, declared.topics, shards=1, by_unit=False, max_request_bytes=1_000_000)
    with InThread(Worker(declared, start_from="earliest")) as running:
        running.wait_ready()
        time.sleep(2)
    assert running.error is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"password": "wrong-password"}, "uthenticationFailed|during login"),
        ({"ca_file": "other-ca.pem"}, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
    ],
    ids=["wrong password", "unknown authority"],
)
def test_why_a_login_fails_is_said(
    secure: tuple[LocalCluster, Path], tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    cluster, folder = secure
    settings = {"password": "right-password", "ca_file": "ca.pem", **changes}
    config = secure_config(tmp_path, cluster, folder / settings["ca_file"])
    done = subprocess.run(
        [*evertally(), "topics", "check", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "EVERTALLY_KAFKA_PASSWORD": settings["password"]},
    )
    assert done.returncode == 5, done.stderr
    assert re.search(reason, done.stderr.splitlines()[-1])
    assert "wrong-password" not in done.stderr
