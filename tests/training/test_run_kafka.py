"""Labelled events of a real topic to a manifest, a lease, a model and its metrics."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from tests.training.training_crashes import crashing_seams
from tests.training.training_runs import LITTLE_NOISE, Toy, blobs

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.broker import Broker
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.examples_kafka import KafkaExamples
from evertally.pipelines.training.run import train_run
from evertally.testing import CrashPoints, SimulatedCrash

pytestmark = [
    pytest.mark.train,
    pytest.mark.kafka,
    pytest.mark.usefixtures("collect_what_clients_leave"),
]

FORM = ExampleForm(("x",), (6,), 0, "y", 3, "")


def topic_of(servers: str, partitions: int = 3) -> str:
    name = f"labelled-{secrets.token_hex(4)}"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    request = {
        name: {"num_partitions": partitions, "replication_factor": 1, "configs": {"retention.ms": "-1"}}
    }
    admin.create_topics(request, wait_for_metadata=True)
    admin.close()
    return name


def send(
    servers: str, topic: str, values: list[bytes], *, transactional: str = "", abort: bool = False
) -> None:
    options = {"transactional_id": transactional} if transactional else {}
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", metrics_enabled=False, **options)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number, value in enumerate(values):
        producer.send(topic, value=value, partition=number % 3)
    producer.flush()
    if transactional:
        (producer.abort_transaction if abort else producer.commit_transaction)()
    producer.close()


def events(count: int, seed: int = 0) -> list[bytes]:
    features, labels = blobs(count, seed=seed)
    return [
        json.dumps({"x": [round(float(v), 4) for v in x], "y": int(y)}).encode()
        for x, y in zip(features, labels, strict=True)
    ]


def kafka_toy(folder: Path, servers: str, topic: str) -> Toy:
    return Toy(
        folder,
        tables={
            "data": 'format = "kafka"\nfeatures = "x"\nshape = [6]\nlabel = "y"\nclasses = 3\n'
            'held_out = "test.npz"',
            "kafka": f'bootstrap_servers = "{servers}"\ntopic = "{topic}"',
            "training": "batches = 4\nepochs = 2\nexpected_units = 240\ncheckpoint_steps = 4",
            **LITTLE_NOISE,
        },
    )


def test_from_a_topic_to_a_model(servers: str, tmp_path: Path) -> None:
    topic = topic_of(servers)
    send(servers, topic, events(120))
    send(servers, topic, events(500, seed=7), transactional=f"{topic}-a", abort=True)
    send(servers, topic, events(120, seed=3), transactional=f"{topic}-b")
    send(servers, topic, [b"not json", b'{"x": [1], "y": 0}', b'{"x": [1,2,3,4,5,6], "y": 9}'])
    toy = kafka_toy(tmp_path / "toy", servers, topic)
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), seams=crashing_seams(CrashPoints(1, "store.publish:after")))
    send(servers, topic, events(300, seed=11))  # later events belong to no frozen range
    report = train_run(toy.config())
    assert report.measured is not None
    assert report.measured > 0.8
    assert toy.spent()[0] == 1
    refused = [json.loads(line) for line in (toy.run / "refused.jsonl").read_text().splitlines()]
    assert len(refused) == 3
    assert len(toy.steps()) == 8


def test_ranges_are_frozen_and_read_again_to_the_same_examples(servers: str, tmp_path: Path) -> None:
    topic = topic_of(servers)
    send(servers, topic, events(90))
    source = KafkaExamples(Broker(servers), topic, FORM, tmp_path / "refused")
    ranges = source.freeze()
    assert [frozen.records for frozen in ranges] == [30, 30, 30]
    send(servers, topic, events(30, seed=2))
    once, twice = (sorted(name for block in source.read(ranges) for name in block.records) for _ in range(2))
    assert once == twice
    assert len(once) == 90
    assert np.unique(once).size == 90


def test_records_that_are_gone_end_the_run_instead_of_changing_its_data(servers: str, tmp_path: Path) -> None:
    topic = topic_of(servers)
    send(servers, topic, events(240))
    toy = kafka_toy(tmp_path / "toy", servers, topic)
    with pytest.raises(SimulatedCrash):
        train_run(toy.config(), seams=crashing_seams(CrashPoints(1, "store.open:before")))
    admin = KafkaAdminClient(bootstrap_servers=servers)
    from kafka import TopicPartition

    admin.delete_records({TopicPartition(topic, 0): 20})
    admin.close()
    with pytest.raises(IntegrityError):
        train_run(toy.config())
    assert toy.spent() == (0, 0)
    assert toy.steps() == []


def test_an_empty_topic_trains_on_noise_alone(servers: str, tmp_path: Path) -> None:
    topic = topic_of(servers)
    toy = kafka_toy(tmp_path / "toy", servers, topic)
    report = train_run(toy.config())
    assert report.steps == 8
