"""The release path's rows: incarnations, heads, ticks and released totals, inside a transaction."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from evertally.accountants.budget.canonical import canonical_json, name
from evertally.accountants.budget.chain import check_row, link, seal_row, sealed_digest, tick_bytes
from evertally.accountants.budget.ledger import Head, OpenedStream, ReleaseRow, ShardRef, StreamRecord
from evertally.accountants.budget.sql import Transaction
from evertally.errors import Fenced, IntegrityError, InvalidParameter
from evertally.validation import integer, positive_integer

__all__ = [
    "acquire",
    "append_ticks",
    "chain_at",
    "fold",
    "insert_stream",
    "mark_published",
    "read_head",
    "read_rows",
    "read_stream",
    "require_current",
    "stream_lock",
    "stream_of_charge",
]

_STREAM_ID_BYTES: Final = 16
_STDERR: Final = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,4})?", re.ASCII)
_KEYS_MAX: Final = 1_000_000
_SHARDS_MAX: Final = 65_536
_HEAD: Final = "t, epoch, sealed, chain, published_t, published_mark, folded_t, folded_chain, mac, holder"


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head as stored, with the chain at its checkpoint."""

    head: Head
    folded_chain: bytes
    holder: str


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
        if not isinstance(key, str) or not 1 <= len(key) <= 256 or "\x00" in key:
            raise InvalidParameter(
                "stream.keys", type(key).__name__, "keys of 1 to 256 characters without NUL"
            )
    return canonical_json("stream.descriptor", stream.descriptor)


def insert_stream(
    tx: Transaction, key: bytes, stream: StreamRecord, descriptor: str, scope: str, charge_id: str
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
        _insert_head(tx, key, incarnation_pk, opened, shard)
    return opened


def read_stream(
    tx: Transaction, key: bytes, stream: str, incarnation: int | None
) -> tuple[int, OpenedStream] | None:
    """(row id, incarnation): the latest where none is named; None where there is none."""
    found = tx.rows(
        "SELECT i.incarnation_pk, i.incarnation, i.stream_id, i.shards, i.descriptor, i.digest, c.name,"
        " i.charge_id, i.mac FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
        " JOIN scope c ON c.scope_id = i.scope_id WHERE s.name = ? AND i.incarnation >= ?"
        " ORDER BY i.incarnation DESC LIMIT 1"
        if incarnation is None
        else "SELECT i.incarnation_pk, i.incarnation, i.stream_id, i.shards, i.descriptor, i.digest, c.name,"
        " i.charge_id, i.mac FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
        " JOIN scope c ON c.scope_id = i.scope_id WHERE s.name = ? AND i.incarnation = ?",
        *(stream, 0 if incarnation is None else incarnation),
    )
    if not found:
        return None
    pk, number, stream_id, shards, descriptor, digest, scope, charge_id, mac = found[0]
    keys = tx.rows(
        "SELECT key_name, key_index FROM incarnation_key WHERE incarnation_pk = ? ORDER BY position", pk
    )
    if hashlib.sha256(descriptor.encode()).digest() != bytes(digest):
        raise IntegrityError(f"descriptor of stream {stream} was altered outside the ledger")
    opened = OpenedStream(
        *(stream, number, bytes(stream_id), tuple(k for k, _ in keys), tuple(i for _, i in keys)),
        *(shards, json.loads(descriptor), scope, charge_id),
    )
    if bytes(mac) != _stream_mac(key, opened):
        raise IntegrityError(f"stream {stream} was altered outside the ledger")
    return pk, opened


def stream_of_charge(tx: Transaction, charge_id: str) -> tuple[str, int] | None:
    """(stream, incarnation) a charge has paid for already, None where it is new."""
    found = tx.rows(
        "SELECT s.name, i.incarnation FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
        " WHERE i.charge_id = ?",
        charge_id,
    )
    return (str(found[0][0]), int(found[0][1])) if found else None


def acquire(tx: Transaction, key: bytes, pk: int, shard: ShardRef, holder: str) -> int:
    """Raise the fencing epoch and return it."""
    row = read_head(tx, key, pk, shard)
    head = replace(row.head, epoch=row.head.epoch + 1)
    _write_head(tx, key, pk, shard, replace(row, head=head, holder=holder))
    return head.epoch


def read_head(tx: Transaction, key: bytes, pk: int, shard: ShardRef) -> HeadRow:
    """The head, its HMAC and its last tick checked."""
    found = tx.rows(f"SELECT {_HEAD} FROM head WHERE incarnation_pk = ? AND shard = ?", pk, shard.shard)  # noqa: S608
    if not found:
        raise InvalidParameter("shard", shard.shard, f"a shard of stream {shard.stream}")
    t, epoch, sealed, chain, published_t, mark, folded_t, folded_chain, mac, holder = found[0]
    sealed = None if sealed is None else bytes(sealed)
    row = HeadRow(
        Head(t, epoch, sealed, bytes(chain), published_t, mark, folded_t), bytes(folded_chain), holder
    )
    check_row(key, b"head", bytes(mac), _what(shard), *_head_fields(shard, row))
    last = tx.rows(
        "SELECT t, chain FROM tick WHERE incarnation_pk = ? AND shard = ? ORDER BY t DESC LIMIT 1",
        pk,
        shard.shard,
    )
    if (last[0][0], bytes(last[0][1])) != (t, row.head.chain) if last else t != folded_t:
        raise IntegrityError(f"{_what(shard)} lost rows at its end")
    return row


def require_current(head: Head, epoch: int) -> None:
    """Refuse a holder whose fencing epoch is not the shard's current one."""
    if epoch != head.epoch:
        raise Fenced(f"fencing epoch {epoch} is over, the shard's is {head.epoch}")


def append_ticks(
    tx: Transaction,
    key: bytes,
    pk: int,
    shard: ShardRef,
    keys: tuple[int, ...],
    epoch: int,
    first: int,
    rows: Sequence[ReleaseRow],
    last: int,
    sealed: bytes,
) -> Head:
    """Insert the rows of ticks first..last, extend the chain, replace the sealed state."""
    row = read_head(tx, key, pk, shard)
    require_current(row.head, epoch)
    if row.head.t != first - 1:
        raise IntegrityError(f"{_what(shard)} stands at tick {row.head.t}; tick {first} does not follow")
    chain, ticks, released, at = row.head.chain, [], [], 0
    for t in range(first, last + 1):
        texts = [(r.key_index, r.t, str(r.value), r.stderr, r.tick_end_ms) for r in rows[at : at + len(keys)]]
        at += len(keys)
        chain = link(key, b"tick", chain, tick_bytes(t, texts))
        ticks.append((pk, shard.shard, t, chain))
        released += [(pk, t, k, shard.shard, value, stderr, end) for k, _, value, stderr, end in texts]
    tx.insert("tick", ("incarnation_pk", "shard", "t", "chain"), ticks)
    columns = ("incarnation_pk", "t", "key_index", "shard", "value", "stderr", "tick_end_ms")
    tx.insert("released", columns, released)
    head = replace(row.head, t=last, chain=chain, sealed=bytes(sealed))
    _write_head(tx, key, pk, shard, replace(row, head=head))
    return head


def check_rows(keys: tuple[int, ...], first: int, rows: Sequence[ReleaseRow], last: int) -> None:
    """Refuse rows that are not, for each tick first..last in order, one row of each key ascending."""
    integer("first", first, low=1)
    integer("last", last, low=first, high=2**62)
    if len(rows) != (last - first + 1) * len(keys):
        raise IntegrityError(f"ticks {first} to {last} need one row for each of {len(keys)} keys")
    expected = iter([(k, t) for t in range(first, last + 1) for k in keys])
    checked: set[str] = set()
    end, at_t = -(2**62), 0
    for key_index, t, value, stderr, tick_end_ms in rows:
        if (key_index, t) != next(expected):
            raise IntegrityError(f"the rows of tick {t} are not one for each key of the shard, in order")
        if type(value) is not int or type(tick_end_ms) is not int:
            raise InvalidParameter("rows", "another type", "integers as value and tick end")
        if stderr not in checked:
            if not _STDERR.fullmatch(stderr):
                raise InvalidParameter("rows.stderr", stderr[:64], "decimal text")
            checked.add(stderr)
        if tick_end_ms != end:
            if t == at_t or tick_end_ms < end:
                raise IntegrityError("one tick has one end, and ends grow")
            end = tick_end_ms
        at_t = t


def read_rows(tx: Transaction, pk: int, shard: int, after_t: int, through_t: int) -> list[ReleaseRow]:
    """Rows with after_t < t <= through_t by (t, key_index)."""
    return [
        ReleaseRow(k, t, int(value), stderr, end)
        for k, t, value, stderr, end in tx.rows(
            "SELECT key_index, t, value, stderr, tick_end_ms FROM released WHERE incarnation_pk = ?"
            " AND t > ? AND t <= ? AND shard = ? ORDER BY t, key_index",
            *(pk, after_t, through_t, shard),
        )
    ]


def chain_at(tx: Transaction, key: bytes, pk: int, shard: ShardRef, t: int) -> bytes:
    """The chain after tick t. Raises IntegrityError for a tick that is not in the ledger or folded."""
    row = read_head(tx, key, pk, shard)
    if t == row.head.folded_t:
        return row.folded_chain
    found = tx.rows(
        "SELECT chain FROM tick WHERE incarnation_pk = ? AND shard = ? AND t = ?", pk, shard.shard, t
    )
    if not found:
        where = (
            "is folded" if t < row.head.folded_t else "is not in the ledger: what is public is ahead of it"
        )
        raise IntegrityError(f"tick {t} of {_what(shard)} {where}")
    return bytes(found[0][0])


def mark_published(
    tx: Transaction, key: bytes, pk: int, shard: ShardRef, epoch: int, t: int, mark: int
) -> None:
    """Record how far the sink is durable."""
    row = read_head(tx, key, pk, shard)
    require_current(row.head, epoch)
    if not row.head.published_t <= t <= row.head.t:
        raise IntegrityError(
            f"tick {t} cannot be marked published between {row.head.published_t} and {row.head.t}"
        )
    head = replace(row.head, published_t=t, published_mark=integer("mark", mark, low=0, high=2**62))
    _write_head(tx, key, pk, shard, replace(row, head=head))


def fold(tx: Transaction, key: bytes, pk: int, shard: ShardRef, epoch: int, through_t: int) -> int:
    """Remove published rows up to through_t; their chain stays in the head, under its HMAC."""
    row = read_head(tx, key, pk, shard)
    require_current(row.head, epoch)
    if through_t > row.head.published_t:
        raise IntegrityError(f"tick {through_t} is not published; only published rows may be folded")
    if through_t <= row.head.folded_t:
        return 0
    chain = chain_at(tx, key, pk, shard, through_t)
    head = replace(row.head, folded_t=through_t)
    removed = tx.rows(
        "SELECT count(*) FROM released WHERE incarnation_pk = ? AND t <= ? AND shard = ?",
        pk,
        through_t,
        shard.shard,
    )[0][0]
    tx.run(
        "DELETE FROM released WHERE incarnation_pk = ? AND t <= ? AND shard = ?", pk, through_t, shard.shard
    )
    tx.run("DELETE FROM tick WHERE incarnation_pk = ? AND shard = ? AND t <= ?", pk, shard.shard, through_t)
    _write_head(tx, key, pk, shard, HeadRow(head, chain, row.holder))
    return int(removed)


def _stream_mac(key: bytes, s: OpenedStream) -> bytes:
    keys = canonical_json("keys", [list(pair) for pair in zip(s.keys, s.key_indices, strict=True)])
    descriptor = canonical_json("descriptor", s.descriptor)
    fields = (s.name, s.incarnation, s.stream_id, keys, s.shards, descriptor, s.scope, s.charge_id)
    return seal_row(key, b"stream", *fields)


def _insert_head(tx: Transaction, key: bytes, pk: int, opened: OpenedStream, shard: int) -> None:
    ref = opened.shard(shard)
    start = link(
        key,
        b"start",
        opened.stream_id,
        canonical_json("shard", [opened.name, ref.incarnation, shard]).encode(),
    )
    row = HeadRow(Head(0, 0, None, start, 0, 0, 0), start, "")
    mac = seal_row(key, b"head", *_head_fields(ref, row))
    tx.run(
        "INSERT INTO head (incarnation_pk, shard, t, epoch, holder, sealed, chain, published_t,"
        " published_mark, folded_t, folded_chain, mac) VALUES (?, ?, 0, 0, '', NULL, ?, 0, 0, 0, ?, ?)",
        *(pk, shard, start, start, mac),
    )


def _write_head(tx: Transaction, key: bytes, pk: int, shard: ShardRef, row: HeadRow) -> None:
    head = row.head
    tx.run(
        "UPDATE head SET t = ?, epoch = ?, holder = ?, sealed = ?, chain = ?, published_t = ?,"
        " published_mark = ?, folded_t = ?, folded_chain = ?, mac = ? WHERE incarnation_pk = ? AND shard = ?",
        *(head.t, head.epoch, row.holder, head.sealed, head.chain, head.published_t, head.published_mark),
        *(
            head.folded_t,
            row.folded_chain,
            seal_row(key, b"head", *_head_fields(shard, row)),
            pk,
            shard.shard,
        ),
    )


def _head_fields(shard: ShardRef, row: HeadRow) -> tuple[object, ...]:
    head = row.head
    return (
        *(shard.stream, shard.incarnation, shard.shard, head.t, head.epoch, sealed_digest(head.sealed)),
        *(head.chain, head.published_t, head.published_mark, head.folded_t, row.folded_chain, row.holder),
    )


def _what(shard: ShardRef) -> str:
    return f"stream {shard.stream}, incarnation {shard.incarnation}, shard {shard.shard}"
