"""Readers of the TOML files of every command: run, check-config, worker (and what shares it), train."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.fuzz.attack import Reader
from tests.fuzz.event_readers import CSV, SCHEMA

from evertally.pipelines.config import load_config
from evertally.pipelines.kafka.config import load_worker_config
from evertally.pipelines.training.config import load_train_config

RUN = (
    b"""[stream]
name = "gates"
keys = ["north", "south"]
start = 2024-01-01T00:00:00Z
end = 2024-01-01T06:00:00Z
tick_s = 3600
[source]
path = "events.csv"
timestamp = "at"
key = "key"
[privacy]
epsilon = 1.0
delta = 1e-6
[output]
releases = "releases.jsonl"
[state]
path = "state.sqlite"
key_file = "key"
""",
    b"""[stream]
name = "people"
keys = ["a", "b", "rest"]
other = "rest"
start = "2024-01-01T00:00:00+01:00"
end = "2024-01-02T00:00:00+01:00"
tick_s = 0.5
[source]
path = "events.csv"
format = "csv"
timestamp = "at"
timezone = "America/New_York"
key = "key"
value = "amount"
value_unit = "0.01"
unit = "who"
[privacy]
unit = "person"
participations = 3
min_separation = 24
per_tick = 2
clip = 500
lower = -500
adjacency = "replace-value"
mechanism = "rational:H24"
mu = 0.5
delta = 1e-7
slack_horizon = 1048576
[budget]
scope = "health"
epsilon_cap = 4
delta_cap = 1e-6
[output]
releases = "out.jsonl"
dead_letters = "dead.jsonl"
[state]
path = "state.sqlite"
key_file = "key"
""",
)
WORKER = (
    b"""[stream]
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
""",
    b"""[stream]
name = "amounts"
keys = ["a", "b"]
start = 2026-01-01T00:00:00Z
tick_s = 60
closing = "event-time"
lateness_s = 2.5
skew_s = 30
shards = 2
[source]
format = "avro"
schemas = { 7 = "event.avsc" }
key = "key"
timestamp = "at"
value = "amount"
value_unit = "0.5"
unit = "who"
[privacy]
unit = "person"
participations = 2
per_tick = 1
clip = 10
mu = 0.3
delta = 1e-7
[state]
path = "postgresql://ledger.internal/evertally"
chain_key_file = "chain"
key_file = "visits.key"
folder = "units"
[kafka]
bootstrap_servers = "one:9092,[::1]:9093"
topic = "raw"
prefix = "amounts"
instance = "w-1"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
username = "u"
password = "p"
session_timeout_s = 10
commit_s = 0.5
max_request_bytes = 2000000
closing_sources = 3
dead_letter_hmac = true
catch_up_ticks_per_s = 100
stall_s = 30
[health]
listen = "127.0.0.1:8080"
[metrics]
listen = "127.0.0.1:9100"
""",
    b"""[stream]
name = "selected"
keys = ["a"]
start = "2026-01-01T00:00:00Z"
tick_s = 10
[source]
key = "region"
[select]
slots = 5
threshold = 5000
mu = 0.2
horizon = 100000
[privacy]
mu = 0.1
delta = 1e-6
[budget]
scope = "all"
epsilon_cap = 8.0
[state]
path = "visits.ledger"
key_file = "visits.key"
[kafka]
bootstrap_servers = "kafka:9092"
topic = "visits.raw"
""",
)
TRAIN = (
    b"""[run]
name = "r"
folder = "run"
key_file = "r.key"
[data]
path = "x.npz"
features = "x"
shape = [3]
label = "y"
classes = 2
[optimiser]
rate = 0.1
[training]
batches = 4
epochs = 2
expected_units = 40
[privacy]
noise_multiplier = 2.0
delta = 1e-5
[budget]
scope = "s"
ledger = "l"
epsilon_cap = 8
delta_cap = 1e-5
""",
    b"""[run]
name = "r2"
folder = "run"
key_file = "r.key"
seed = 7
[data]
features = "x"
shape = [3]
label = "y"
classes = 2
[kafka]
bootstrap_servers = "kafka:9092"
topic = "labelled"
[preconditioner]
kind = "kfc"
[optimiser]
kind = "sgd"
rate = 0.1
momentum = 0.9
[training]
batches = 4
epochs = 2
expected_units = 40
clip = 1.0
[privacy]
epsilon = 3.0
delta = 1e-5
[budget]
scope = "s"
service = "https://budget.internal"
token_file = "token"
[metrics]
listen = "127.0.0.1:9101"
public_listen = "127.0.0.1:9102"
""",
)


def _reader(folder: Path, corpus: tuple[bytes, ...], load: Callable[[Path], object]) -> Reader:
    path = folder / "config.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load(path)

    return Reader(corpus, read, text=True)


def run_config(folder: Path) -> Reader:
    """What `evertally run` and `check-config` read."""
    (folder / "events.csv").write_bytes(CSV[0])
    return _reader(folder, RUN, load_config)


def worker_config(folder: Path) -> Reader:
    """What `evertally worker`, `release`, `topics`, `beam` and `flink` read."""
    (folder / "event.avsc").write_text(json.dumps(SCHEMA))
    return _reader(folder, WORKER, lambda path: load_worker_config(path, {}))


def train_config(folder: Path) -> Reader:
    """What `evertally train` reads."""
    np.savez(folder / "x.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    return _reader(folder, TRAIN[:1], lambda path: load_train_config(path, {}))
