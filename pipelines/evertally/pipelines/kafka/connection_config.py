"""The parts of a worker's configuration that say how it is reached and what it reaches."""

from __future__ import annotations

import os
from pathlib import Path

from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.kafka.broker import SASL_MECHANISMS, SECURITY_PROTOCOLS, Broker
from evertally.pipelines.metrics import parse_listen

__all__ = ["read_broker", "read_listen"]


def read_broker(kafka: ConfigTable, folder: Path, mistakes: Mistakes) -> Broker | None:
    """How to reach the cluster, from the table [kafka]."""
    servers = kafka.text(
        "bootstrap_servers", "host:port, comma separated (or in EVERTALLY_KAFKA_BOOTSTRAP_SERVERS)"
    )
    protocol = kafka.choice("security_protocol", SECURITY_PROTOCOLS, "PLAINTEXT")
    files: dict[str, Path | None] = {}
    for key in ("ca_file", "cert_file", "client_key_file"):
        text = kafka.text(key, "a PEM file", required=False)
        files[key] = None if text is None else folder / text
        if text is not None and not os.path.isfile(folder / text):
            mistakes.add(f"kafka.{key}", text, "a readable PEM file")
    mechanism = kafka.text("sasl_mechanism", "one of " + ", ".join(SASL_MECHANISMS), required=False)
    username = kafka.text("username", "the SASL user", required=mechanism is not None)
    password = kafka.text(
        "password",
        "the SASL password, as EVERTALLY_KAFKA_PASSWORD",
        required=mechanism is not None,
        secret=True,
    )
    if mechanism is not None and mechanism not in SASL_MECHANISMS:
        mistakes.add("kafka.sasl_mechanism", mechanism, "one of " + ", ".join(SASL_MECHANISMS))
    if protocol.startswith("SASL") != (mechanism is not None):
        mistakes.add("kafka.sasl_mechanism", mechanism, f"what {protocol} needs")
    if servers is None:
        return None
    return Broker(
        servers,
        protocol,
        files["ca_file"],
        files["cert_file"],
        files["client_key_file"],
        mechanism,
        username,
        password,
    )


def read_listen(health: ConfigTable, mistakes: Mistakes) -> tuple[str, int] | None:
    """Host and port of the probes, from the table [health]; None where there is none."""
    text = health.text("listen", "host:port of /healthz and /readyz", required=False)
    if text is None:
        return None
    return mistakes.attempt(lambda: parse_listen("listen", text), "health.")
