"""The worker's configuration: mistakes, the environment, and what check-config says. No broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evertally.pipelines.cli.check_config import check_config
from evertally.pipelines.config_table import InvalidConfig
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config

GOOD = """
[stream]
name = "visits"
keys = ["north", "other"]
other = "other"
start = "2026-01-01T00:00:00Z"
tick_s = 10
[source]
key = "region"
[privacy]
epsilon = 1.0
delta = 1e-6
[state]
path = "visits.ledger"
key_file = "visits.key"
[kafka]
bootstrap_servers = "kafka:9092"
topic = "visits.raw"
"""


def load(tmp_path: Path, text: str = GOOD, environment: dict[str, str] | None = None) -> WorkerConfig:
    path = tmp_path / "worker.toml"
    path.write_text(text)
    return load_worker_config(path, environment or {})


def mistakes(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, text, environment)
    return {mistake.field: mistake.expected for mistake in caught.value.mistakes}


@pytest.mark.parametrize(
    "line",
    [
        'pasword = "hunter2"',
        "password = 54321",
        'password = "hunter2\\u0007"',
        'sasl_mechanism = "PLAIN"\nusername = "u"\npassword = ["hunter2"]',
    ],
)
def test_a_mistake_says_no_password(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, GOOD + line)
    assert "hunter2" not in str(caught.value)
    assert "54321" not in str(caught.value)


def test_a_mistake_says_no_ledger_address(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, GOOD.replace("visits.ledger", "postgresql://u:hunter2@host/db\\u0007"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.rule.by_arrival
    assert config.rule.tick_ms == 10_000
    assert config.spec.closing == "arrival"
    assert (config.session_timeout_ms, config.commit_ms, config.spec.shards) == (6000, 1000, 1)
    assert config.topics.releases == "visits.releases"
    assert config.membership("release").group == "visits.release"
    assert config.health is None
    assert config.ledger == str(tmp_path / "visits.ledger")


@pytest.mark.slow
def test_event_time(tmp_path: Path) -> None:
    text = GOOD.replace("tick_s = 10", 'tick_s = 10\nclosing = "event-time"\nlateness_s = 2.5').replace(
        'key = "region"', 'key = "region"\ntimestamp = "at"'
    )
    rule = load(tmp_path, text).rule
    assert (rule.lateness_ms, rule.skew_ms, rule.by_arrival) == (2500, 60_000, False)


@pytest.mark.slow
def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    text = (
        GOOD.replace("tick_s = 10", "tick_s = inf\nlateness_s = 1")
        .replace('start = "2026-01-01T00:00:00Z"', 'start = "yesterday"')
        .replace('topic = "visits.raw"', 'topic = "visits.raw"\nsecurity_protocol = "SASL_SSL"\ntopik = 1')
        .replace('key = "region"', 'key = "region"\nformat = "avro"\ntimestamp = "at"')
        + '[health]\nlisten = "nowhere"\n[nonsense]\n'
    )
    found = mistakes(tmp_path, text)
    assert {
        "stream.tick_s",
        "stream.start",
        "stream.lateness_s",
        "source.schemas",
        "source.timestamp",
        "kafka.sasl_mechanism",
        "kafka.topik",
        "health.listen",
        "nonsense",
    } <= found.keys()
    assert "did you mean topic" in found["kafka.topik"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (('topic = "visits.raw"', 'topic = "no spaces"'), "kafka.topic"),
        (('topic = "visits.raw"', 'topic = "t"\nmax_request_bytes = 10'), "kafka.max_request_bytes"),
        (('topic = "visits.raw"', 'topic = "t"\nca_file = "missing.pem"'), "kafka.ca_file"),
        (("delta = 1e-6", 'delta = 1e-6\nunit = "person"'), "privacy.participations"),
        (("delta = 1e-6", "delta = 1e-6\nclip = 0"), "privacy.clip"),
        (("tick_s = 10", "tick_s = 0.01"), "stream.tick_s"),
        (("tick_s = 10", "tick_s = 10\nshards = 3"), "privacy.shards"),
        (('["north", "other"]', json.dumps(["other", *map(str, range(50_000))])), "kafka.max_request_bytes"),
        (("[kafka]", "[select]\nslots = 5\nthreshold = 2\nmu = 0.1\n[kafka]"), "select.line.threshold"),
        (("[kafka]", "[select]\nslots = 5\nthreshold = 9000\nmu = 0.5\n[kafka]"), "select.mu"),
        (
            (
                'key = "region"\n[privacy]',
                'key = "region"\nunit = "u"\n[select]\nslots = 5\nthreshold = 9000\nmu = 0.1\n[privacy]\n'
                'unit = "person"\nparticipations = 2',
            ),
            "select",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, change: tuple[str, str], field: str) -> None:
    assert field in mistakes(tmp_path, GOOD.replace(*change))


@pytest.mark.slow
def test_the_environment_overrides_text_keys(tmp_path: Path) -> None:
    secured = GOOD.replace(
        'topic = "visits.raw"',
        'topic = "visits.raw"\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        'sasl_mechanism = "SCRAM-SHA-256"\nusername = "u"',
    )
    config = load(
        tmp_path,
        secured,
        {"EVERTALLY_KAFKA_PASSWORD": "hunter2", "EVERTALLY_KAFKA_BOOTSTRAP_SERVERS": "elsewhere:1"},
    )
    assert (config.broker.password, config.broker.bootstrap_servers) == ("hunter2", "elsewhere:1")
    assert "hunter2" not in repr(config)
    assert "kafka.password" in mistakes(tmp_path, secured)
    assert "EVERTALLY_KAFKA_NONSENSE" in mistakes(tmp_path, GOOD, {"EVERTALLY_KAFKA_NONSENSE": "x"})


@pytest.mark.slow
def test_check_config_knows_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(tmp_path)
    check_config(tmp_path / "worker.toml", None, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is True
    assert shown["stream"] == "visits"
    (tmp_path / "worker.toml").write_text(GOOD.replace("tick_s = 10", "tick_s = -1"))
    with pytest.raises(InvalidConfig):
        check_config(tmp_path / "worker.toml", None, as_json=True)
