"""Streams: declared keys, incarnations with random ids, and the horizon each one has paid for."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import Final

from evertally.accountants.budget import charge_states
from evertally.accountants.budget.canonical import canonical_json, is_name, is_storable, name, plain_json
from evertally.accountants.budget.chain import check_row, seal_row
from evertally.accountants.budget.charges import request_from_json
from evertally.accountants.budget.heads import insert_head
from evertally.accountants.budget.lines import CounterLine
from evertally.accountants.budget.records import OpenedStream, StreamRecord
from evertally.accountants.budget.sql import Transaction, blob
from evertally.errors import IntegrityError, InvalidParameter
from evertally.validation import positive_integer

__all__ = [
    "add_horizon",
    "check_record",
    "insert_stream",
    "is_of_record",
    "read_horizons",
    "read_stream",
    "stream_lock",
    "stream_of_charge",
]

_STREAM_ID_BYTES: Final = 16
_KEYS_MAX: Final = 1_000_000
_SHARDS_MAX: Final = 65_536
_INCARNATION: Final = (
    "SELECT i.incarnation_pk, i.incarnation, i.stream_id, i.shards, i.descriptor, i.digest, c.name,"
    " i.charge_id, i.mac FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
    " JOIN scope c ON c.scope_id = i.scope_id WHERE s.name = ?"
)


def stream_lock(stream: str) -> str:
    """Name of the lock that every change of a stream takes."""
    return f"stream/{stream}"


def check_record(stream: StreamRecord) -> str:
    """The descriptor's canonical JSON, once every field is checked."""
    name("stream.name", stream.name)
    positive_integer("stream.shards", stream.shards, high=_SHARDS_MAX)
    if not 1 <= len(stream.keys) <= _KEYS_MAX or len(set(stream.keys)) != len(stream.keys):
        raise InvalidParameter("stream.keys", len(stream.keys), f"1 to {_KEYS_MAX} distinct keys")
    for key in stream.keys:
        if not is_storable(key) or not 1 <= len(key) <= 256:
            raise InvalidParameter(
                "stream.keys", type(key).__name__, "keys of 1 to 256 characters without NUL"
            )
    return canonical_json("stream.descriptor", stream.descriptor)


def insert_stream(
    tx: Transaction,
    key: bytes,
    stream: StreamRecord,
    descriptor: str,
    scope: str,
    charge_id: str,
    slack_horizon: int | None,
) -> OpenedStream:
    """Create the next incarnation with a fresh random id; keys that were there keep their index."""
    tx.run(
        "INSERT INTO stream (name, next_incarnation, next_key_index) VALUES (?, 1, 0)"
        " ON CONFLICT (name) DO NOTHING",
        stream.name,
    )
    stream_pk, incarnation, next_index = tx.rows(
        "SELECT stream_pk, next_incarnation, next_key_index FROM stream WHERE name = ?", stream.name
    )[0]
    known: dict[str, int] = dict(
        tx.rows("SELECT key_name, key_index FROM stream_key WHERE stream_pk = ?", stream_pk)
    )
    new = [key_name for key_name in stream.keys if key_name not in known]
    known |= {key_name: next_index + i for i, key_name in enumerate(new)}
    tx.insert(
        "stream_key",
        ("stream_pk", "key_name", "key_index"),
        [(stream_pk, key_name, known[key_name]) for key_name in new],
    )
    tx.run(
        "UPDATE stream SET next_incarnation = ?, next_key_index = ? WHERE stream_pk = ?",
        *(incarnation + 1, next_index + len(new), stream_pk),
    )
    opened = OpenedStream(
        stream.name,
        incarnation,
        os.urandom(_STREAM_ID_BYTES),
        tuple(stream.keys),
        tuple(known[key_name] for key_name in stream.keys),
        stream.shards,
        json.loads(descriptor),
        scope,
        charge_id,
    )
    digest = hashlib.sha256(descriptor.encode()).digest()
    (incarnation_pk,) = tx.rows(
        "INSERT INTO incarnation (stream_pk, incarnation, stream_id, shards, descriptor, digest, scope_id,"
        " charge_id, mac) VALUES (?, ?, ?, ?, ?, ?, (SELECT scope_id FROM scope WHERE name = ?), ?, ?)"
        " RETURNING incarnation_pk",
        *(stream_pk, incarnation, opened.stream_id, stream.shards, descriptor, digest, scope, charge_id),
        _stream_mac(key, opened),
    )[0]
    tx.insert(
        "incarnation_key",
        ("incarnation_pk", "position", "key_name", "key_index"),
        [
            (incarnation_pk, i, k, index)
            for i, (k, index) in enumerate(zip(opened.keys, opened.key_indices, strict=True))
        ],
    )
    for shard in range(stream.shards):
        insert_head(tx, key, incarnation_pk, opened, shard)
    if slack_horizon is None:
        return opened
    add_horizon(tx, key, incarnation_pk, opened, 0, slack_horizon)
    return replace(opened, slack_horizon=slack_horizon)


def read_stream(
    tx: Transaction, key: bytes, stream: str, incarnation: int | None
) -> tuple[int, OpenedStream] | None:
    """(row id, incarnation): the latest where none is named; None where there is none."""
    if not is_name(stream):
        return None
    found = tx.rows(
        _INCARNATION + " AND i.incarnation >= ? ORDER BY i.incarnation DESC LIMIT 1"
        if incarnation is None
        else _INCARNATION + " AND i.incarnation = ?",
        *(stream, 0 if incarnation is None else incarnation),
    )
    if not found:
        return None
    pk, number, stream_id, shards, descriptor, digest, scope, charge_id, mac = found[0]
    keys = tx.rows(
        "SELECT key_name, key_index FROM incarnation_key WHERE incarnation_pk = ? ORDER BY position", pk
    )
    if hashlib.sha256(descriptor.encode()).digest() != blob(digest):
        raise IntegrityError(f"descriptor of stream {stream} was altered outside the ledger")
    opened = OpenedStream(
        *(stream, number, blob(stream_id), tuple(k for k, _ in keys), tuple(i for _, i in keys)),
        *(shards, json.loads(descriptor), scope, charge_id),
    )
    if blob(mac) != _stream_mac(key, opened):
        raise IntegrityError(f"stream {stream} was altered outside the ledger")
    horizons = read_horizons(tx, key, pk, opened)
    paid = horizons[-1] if horizons else _horizon_of_charge(tx, key, opened)
    return pk, replace(opened, slack_horizon=paid)


def stream_of_charge(tx: Transaction, charge_id: str) -> tuple[str, int] | None:
    """(stream, incarnation) a charge has paid for already, None where it is new."""
    found = tx.rows(
        "SELECT s.name, i.incarnation FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
        " WHERE i.charge_id = ?",
        charge_id,
    )
    return (str(found[0][0]), int(found[0][1])) if found else None


def is_of_record(opened: OpenedStream, stream: StreamRecord, descriptor: str) -> bool:
    """Whether an incarnation is of this record, whose descriptor's canonical JSON is `descriptor`."""
    same = (opened.name, opened.keys, opened.shards) == (stream.name, tuple(stream.keys), stream.shards)
    return same and plain_json(dict(opened.descriptor)) == descriptor


def add_horizon(
    tx: Transaction, key: bytes, pk: int, opened: OpenedStream, number: int, slack_horizon: int
) -> None:
    """Append the number-th horizon of an incarnation: ticks up to it are paid for."""
    tx.run(
        "INSERT INTO horizon (incarnation_pk, number, slack_horizon, mac) VALUES (?, ?, ?, ?)",
        *(pk, number, slack_horizon),
        seal_row(key, b"horizon", *_horizon_fields(opened, number, slack_horizon)),
    )


def read_horizons(tx: Transaction, key: bytes, pk: int, opened: OpenedStream) -> list[int]:
    """Every horizon an incarnation has paid for, growing; none where its line is no counter."""
    horizons: list[int] = []
    for number, slack_horizon, mac in tx.rows(
        "SELECT number, slack_horizon, mac FROM horizon WHERE incarnation_pk = ? ORDER BY number", pk
    ):
        what = f"a horizon of stream {opened.name}"
        check_row(key, b"horizon", blob(mac), what, *_horizon_fields(opened, number, slack_horizon))
        if number != len(horizons) or slack_horizon <= (horizons[-1] if horizons else 0):
            raise IntegrityError(f"the horizons of stream {opened.name} do not follow each other")
        horizons.append(slack_horizon)
    return horizons


def _horizon_of_charge(tx: Transaction, key: bytes, opened: OpenedStream) -> int | None:
    """What a stream's charge says where no horizon is kept: one of an older ledger, or none at all."""
    state = charge_states.read(tx, key, opened.charge_id)
    if state is None:
        raise IntegrityError(f"the charge of stream {opened.name} is not in the ledger")
    line = request_from_json(json.loads(state.line), state.principal).line
    return line.parameters.slack_horizon if isinstance(line, CounterLine) else None


def _horizon_fields(opened: OpenedStream, number: int, slack_horizon: int) -> tuple[object, ...]:
    return opened.name, opened.incarnation, opened.stream_id, number, slack_horizon


def _stream_mac(key: bytes, s: OpenedStream) -> bytes:
    keys = plain_json([list(pair) for pair in zip(s.keys, s.key_indices, strict=True)])
    descriptor = plain_json(dict(s.descriptor))
    fields = (s.name, s.incarnation, s.stream_id, keys, s.shards, descriptor, s.scope, s.charge_id)
    return seal_row(key, b"stream", *fields)
