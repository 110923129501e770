"""The configuration of `evertally worker`: one TOML file of the same family as `evertally run`'s.

Every key of [kafka] and [state] may come from the environment instead, as EVERTALLY_KAFKA_PASSWORD for
kafka.password; that is the place for passwords. docs/how-to-kafka.md describes each key.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from evertally.pipelines.bounding import UnitBound
from evertally.pipelines.config_parts import EVENT, read_keys
from evertally.pipelines.config_stream import (
    Declared,
    EventFields,
    load_declaration,
    read_privacy,
    stream_spec,
)
from evertally.pipelines.config_table import ConfigTable, Mistakes
from evertally.pipelines.kafka.aggregation import TickRule
from evertally.pipelines.kafka.broker import Broker, Membership
from evertally.pipelines.kafka.connection_config import read_broker, read_listen
from evertally.pipelines.kafka.key_selection import EVENTS_ONLY, SelectionSpec, slot_names
from evertally.pipelines.kafka.source_config import EventFormat, read_format
from evertally.pipelines.kafka.sums import sums_bytes
from evertally.pipelines.kafka.topics import TopicNames
from evertally.pipelines.metrics import Listen, read_metrics_listen
from evertally.pipelines.releases import StreamHeader
from evertally.pipelines.stream_spec import StreamSpec
from evertally.pipelines.ticks import parse_ms

__all__ = ["WorkerConfig", "load_worker_config"]

_TABLES: Final = ("stream", "source", "select", "privacy", "budget", "state", "kafka", "health", "metrics")
_RECORD_BYTES: Final = 8192  # of a closing besides its sums, and of a request besides its records
_FROM_ENVIRONMENT: Final = ("kafka", "state")
_TEXT_KEYS: Final = frozenset(
    {
        "bootstrap_servers",
        "topic",
        "prefix",
        "instance",
        "security_protocol",
        "sasl_mechanism",
        "username",
        "password",
        "ca_file",
        "cert_file",
        "client_key_file",
        "path",
        "chain_key_file",
        "key_file",
        "folder",
    }
)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """All of a worker.

    Attributes:
        spec: what the ledger records and charges.
        rule: how events find their tick, and when ticks close.
        source: form of the events.
        other: the declared key that takes undeclared ones, None to refuse those.
        bound: bounds on a unit's contributions, None at event level.
        select: how undeclared keys are selected for slots, None where they are not.
        broker: how to reach the cluster.
        topics: names of the stream's topics.
        instance: this worker's stable name; no two running workers may share one.
        session_timeout_ms: a worker that is silent so long loses its partitions.
        commit_ms: a batch waits at most so long for its commit.
        max_request_bytes: largest request to the broker; at most the topics' max.message.bytes.
        closing_sources: number of sources, where another engine writes the closings; None for our own.
        dead_letter_hmac: whether a dead letter carries an HMAC of the payload.
        catch_up_ticks_per_s: missed ticks close in order, at most so many a second.
        stall_s: records wait and nothing moves for so long: the worker stops with exit code 5.
        ledger: path of a SQLite file, or a postgresql:// address.
        chain_key_file: the ledger's chain key, where it does not lie beside the ledger.
        key_file: the master secret, mode 0600.
        folder: for the state of privacy units, on disk; None at event level.
        health: host and port of /healthz and /readyz; None for none.
        metrics: where /internal/metrics stands, for operators only; None for none.
    """

    spec: StreamSpec
    rule: TickRule
    source: EventFormat
    other: str | None
    bound: UnitBound | None
    select: SelectionSpec | None
    broker: Broker
    topics: TopicNames
    instance: str
    session_timeout_ms: int
    commit_ms: int
    max_request_bytes: int
    closing_sources: int | None
    dead_letter_hmac: bool
    catch_up_ticks_per_s: int
    stall_s: float
    ledger: str = field(repr=False)
    chain_key_file: Path | None
    key_file: Path
    folder: Path | None
    health: tuple[str, int] | None
    metrics: Listen | None = None

    def header(self, incarnation: int) -> StreamHeader:
        """The public header of the stream, with what a selection of keys loses besides."""
        selection = None if self.select is None else self.select.loss(self.spec)
        return replace(self.spec.header(incarnation), selection=selection)

    def membership(self, stage: str) -> Membership:
        """This worker's place in the group of one stage."""
        group = f"{self.topics.prefix}.{stage}"
        return Membership(group, f"{self.instance}.{stage}", self.session_timeout_ms)


def load_worker_config(path: Path, environment: Mapping[str, str] = os.environ) -> WorkerConfig:
    """Read and check a configuration.

    Raises:
        InvalidConfig: with every mistake in it.
        InvalidParameter: the file cannot be read, or is no TOML.
    """

    def amend(data: dict[str, object], mistakes: Mistakes) -> None:
        for name in _FROM_ENVIRONMENT:
            _overlay(data, name, environment, mistakes)

    return load_declaration(path, _TABLES, _assemble, amend)


def _overlay(data: dict[str, object], name: str, environment: Mapping[str, str], mistakes: Mistakes) -> None:
    prefix = f"EVERTALLY_{name.upper()}_"
    found = {key[len(prefix) :].lower(): text for key, text in environment.items() if key.startswith(prefix)}
    table = data.setdefault(name, {})
    for key, text in found.items():
        if not isinstance(table, dict) or key not in _TEXT_KEYS:
            mistakes.add(prefix + key.upper(), "set", "one of " + ", ".join(sorted(_TEXT_KEYS)))
        else:
            table[key] = text


def _assemble(tables: dict[str, ConfigTable], folder: Path, mistakes: Mistakes) -> WorkerConfig | None:
    stream = tables["stream"]
    name = stream.text("name", "a name for the stream")
    keys, other = read_keys(stream, mistakes)
    select = _read_select(tables["select"], mistakes)
    if keys is not None and select is not None:
        keys += slot_names(select.slots)
    rule = _read_rule(stream, mistakes)
    shards = stream.integer("shards", low=1, high=1024) or 1
    terms = read_privacy(tables["privacy"], tables["budget"], name, mistakes)
    if select is not None and terms.unit != EVENT:
        mistakes.add("select", f"privacy.unit = {terms.unit}", EVENTS_ONLY)
    source = read_format(
        tables["source"],
        folder,
        terms.unit,
        (terms.lower, terms.clip),
        mistakes,
        by_arrival=rule is None or rule.by_arrival,
    )
    spec = None
    if not mistakes.found and name and keys and rule and source:
        closing = "arrival" if rule.by_arrival else "event-time"
        value = None if source.value is None else (source.value, source.rule.unit)
        declared = Declared(name, keys, rule.start_ms, rule.tick_ms, closing, shards)
        events = EventFields(source.unit, source.timezone, other, value)
        spec = stream_spec(declared, terms, events, mistakes)
    if spec is not None and select is not None:
        mistakes.attempt(lambda: select.require_room(spec), "select.")
    return _worker(tables, folder, spec, rule, source, other, terms.bound, select, mistakes)


def _read_select(table: ConfigTable, mistakes: Mistakes) -> SelectionSpec | None:
    if not any(table.has(key) for key in ("slots", "threshold", "mu", "horizon")):
        return None
    slots = table.integer("slots", low=1, high=100_000, required=True, expected="how many keys may be shown")
    threshold = table.integer("threshold", low=1, required=True, expected="the smallest noisy count to show")
    mu = table.positive("mu", "the selection's part of the budget, a number > 0", high=1000, required=True)
    horizon = table.integer("horizon", low=1, high=2**40) or 2**20
    if slots is None or threshold is None or mu is None:
        return None
    return mistakes.attempt(lambda: SelectionSpec(slots, threshold, mu, horizon))


def _read_rule(stream: ConfigTable, mistakes: Mistakes) -> TickRule | None:
    closing = stream.choice("closing", ("arrival", "event-time"), "arrival")
    expected = "the start of tick 1, RFC 3339 in UTC, for example 2026-01-01T00:00:00Z"
    text = stream.raw("start", expected)
    tick_s = stream.positive("tick_s", "a length in seconds > 0", high=1e9, required=True)
    lateness_s = stream.positive("lateness_s", "seconds > 0", high=1e9)
    skew_s = stream.positive("skew_s", "seconds > 0", high=1e9)
    if closing == "arrival":
        for key, value in (("lateness_s", lateness_s), ("skew_s", skew_s)):
            if value is not None:
                mistakes.add(f"stream.{key}", value, "no such key where stream.closing is arrival")
    if isinstance(text, datetime.datetime):
        text = text.isoformat().replace("+00:00", "Z")
    try:
        start_ms = parse_ms(str(text))
    except (ValueError, TypeError):
        if text is not None:
            mistakes.add("stream.start", str(text), expected)
        return None
    if tick_s is None:
        return None
    if abs(round(tick_s * 1000) - tick_s * 1000) > 1e-6 or tick_s < 0.1:
        mistakes.add("stream.tick_s", tick_s, "seconds >= 0.1, a multiple of 0.001")
        return None
    skew = None if closing == "arrival" else round((60.0 if skew_s is None else skew_s) * 1000)
    return TickRule(start_ms, round(tick_s * 1000), round((lateness_s or 0.0) * 1000), skew)


def _worker(
    tables: dict[str, ConfigTable],
    folder: Path,
    spec: StreamSpec | None,
    rule: TickRule | None,
    source: EventFormat | None,
    other: str | None,
    bound: UnitBound | None,
    select: SelectionSpec | None,
    mistakes: Mistakes,
) -> WorkerConfig | None:
    kafka, state, health = tables["kafka"], tables["state"], tables["health"]
    broker = read_broker(kafka, folder, mistakes)
    topic = kafka.text("topic", "the topic with the events")
    prefix = kafka.text("prefix", "what the stream's own topics begin with", required=False)
    instance = kafka.text("instance", "this worker's stable name", required=False) or socket.gethostname()
    session_s = kafka.positive("session_timeout_s", "seconds", high=300) or 6.0
    commit_s = kafka.positive("commit_s", "seconds", high=60) or 1.0
    request_bytes = kafka.integer("max_request_bytes", low=500_000, high=2**30) or 1_000_000
    sources = kafka.integer("closing_sources", low=1, high=100_000)
    hmac = kafka.raw("dead_letter_hmac", "true or false", required=False) or False
    catch_up = kafka.integer("catch_up_ticks_per_s", low=1, high=10**6) or 2000
    stall_s = kafka.positive("stall_s", "seconds", high=1e6) or 120.0
    if not isinstance(hmac, bool):
        mistakes.add("kafka.dead_letter_hmac", hmac, "true or false")
    ledger = state.text("path", "the ledger: a SQLite file, or a postgresql:// address", secret=True)
    chain_key = state.text("chain_key_file", "the ledger's chain key", required=False)
    key_file = state.text("key_file", "the key file, made where there is none")
    unit_folder = state.text("folder", "a folder for the state of units", required=bound is not None)
    listen = read_listen(health, mistakes)
    metrics = read_metrics_listen(tables["metrics"], folder, mistakes)
    if mistakes.found or not (spec and rule and source and broker and topic and ledger and key_file):
        return None
    largest = -(-len(spec.keys) // spec.shards)
    if sums_bytes(largest) + _RECORD_BYTES > request_bytes:
        mistakes.add(
            "kafka.max_request_bytes",
            request_bytes,
            f"{sums_bytes(largest) + _RECORD_BYTES}: room for the sums of {largest} keys; or more shards",
        )
    if not ledger.startswith(("postgresql://", "postgres://")):
        ledger = str(folder / ledger)
    names = mistakes.attempt(lambda: TopicNames(topic, prefix or spec.name))
    if names is None:
        return None
    return WorkerConfig(
        spec=spec,
        rule=rule,
        source=source,
        other=other,
        bound=bound,
        select=select,
        broker=broker,
        topics=names,
        instance=instance,
        session_timeout_ms=round(session_s * 1000),
        commit_ms=min(round(commit_s * 1000), rule.tick_ms),
        max_request_bytes=request_bytes,
        closing_sources=sources,
        dead_letter_hmac=bool(hmac),
        catch_up_ticks_per_s=catch_up,
        stall_s=stall_s,
        ledger=ledger,
        chain_key_file=None if chain_key is None else folder / chain_key,
        key_file=folder / key_file,
        folder=None if unit_folder is None else folder / unit_folder,
        health=listen,
        metrics=metrics,
    )
