"""The job's Kafka tables in Flink SQL: the input, the closings and the dead letters, all as bare bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evertally.errors import InvalidParameter
from evertally.pipelines.kafka.broker import Broker

__all__ = ["GROUP_OFFSETS", "clock_table", "kafka_properties", "sink_table", "source_table"]

GROUP_OFFSETS: Final = "group-offsets"
_TRANSACTION_TIMEOUT_MS: Final = 600_000
_SHADED: Final = "org.apache.flink.kafka.shaded.org.apache.kafka.common"
_LOGIN_MODULES: Final = {
    "SCRAM-SHA-256": "security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "security.scram.ScramLoginModule",
    "PLAIN": "security.plain.PlainLoginModule",
}


def kafka_properties(broker: Broker) -> dict[str, str]:
    """Client properties. A password is never among them: each worker takes it from its environment.

    >>> kafka_properties(Broker("k:9092"))
    {'bootstrap.servers': 'k:9092', 'security.protocol': 'PLAINTEXT'}
    """
    properties = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": broker.security_protocol,
    }
    if broker.ca_file is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.ca_file)}
    if broker.cert_file is not None:
        if broker.key_file != broker.cert_file:
            raise InvalidParameter(
                "kafka.client_key_file", str(broker.key_file), "the file of kafka.cert_file, which holds both"
            )
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(broker.cert_file)}
    if broker.sasl_mechanism is not None:
        module = f"{_SHADED}.{_LOGIN_MODULES[broker.sasl_mechanism]}"
        properties |= {
            "sasl.mechanism": broker.sasl_mechanism,
            "sasl.jaas.config": f'{module} required username="{broker.username}" '
            'password="${env:EVERTALLY_KAFKA_PASSWORD}";',
            "config.providers": "env",
            "config.providers.env.class": f"{_SHADED}.config.provider.EnvVarConfigProvider",
        }
    return properties


def source_table(name: str, topic: str, group: str, properties: Mapping[str, str]) -> str:
    """DDL of the input. The group's offsets are where the stream begins; a restored job has its own."""
    options = {
        "connector": "kafka",
        "topic": topic,
        "format": "raw",
        "scan.startup.mode": GROUP_OFFSETS,
        "properties.group.id": group,
        "properties.client.id.prefix": group,
        "properties.auto.offset.reset": "none",
        "properties.commit.offsets.on.checkpoint": "false",
        "properties.isolation.level": "read_committed",
        **_prefixed(properties),
    }
    columns = "`value` BYTES, `partition` INT METADATA VIRTUAL, `offset` BIGINT METADATA VIRTUAL"
    return _table(name, columns, options)


def clock_table(name: str, tick_ms: int) -> str:
    """DDL of a source that wakes the lanes: five times a tick, but 2 to 20 times a second."""
    rate = max(2, min(20, 5000 // tick_ms))
    options = {"connector": "datagen", "rows-per-second": str(rate), "scan.parallelism": "1"}
    return _table(name, "n INT", options)


def sink_table(name: str, topic: str, parallelism: int, properties: Mapping[str, str]) -> str:
    """DDL of an exactly-once sink with as many writers as the topic has partitions: writer n, partition n."""
    options = {
        "connector": "kafka",
        "topic": topic,
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        "sink.partitioner": "fixed",
        "sink.parallelism": str(parallelism),
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": topic,
        "properties.transaction.timeout.ms": str(_TRANSACTION_TIMEOUT_MS),
        **_prefixed(properties),
    }
    return _table(name, "k BYTES, v BYTES", options)


def _prefixed(properties: Mapping[str, str]) -> dict[str, str]:
    return {f"properties.{key}": value for key, value in properties.items()}


def _table(name: str, columns: str, options: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{_quoted(key)} = {_quoted(value)}" for key, value in options.items())
    return f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ({pairs})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
