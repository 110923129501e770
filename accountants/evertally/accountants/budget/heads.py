"""Heads: where each shard stands, who may move it, and the chain its rows end in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from evertally.accountants.budget.canonical import plain_json
from evertally.accountants.budget.chain import check_row, link, seal_row, sealed_digest
from evertally.accountants.budget.records import Head, OpenedStream, ShardRef
from evertally.accountants.budget.sql import Transaction, blob
from evertally.errors import Fenced, IntegrityError
from evertally.validation import integer

__all__ = [
    "HeadRow",
    "acquire",
    "insert_head",
    "mark_published",
    "read_head",
    "require_current",
    "shard_words",
    "write_head",
]

_HEAD: Final = "t, epoch, sealed, chain, published_t, published_mark, folded_t, folded_chain, mac, holder"


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head as stored, with the chain at its checkpoint."""

    head: Head
    folded_chain: bytes
    holder: str


def acquire(tx: Transaction, key: bytes, pk: int, shard: ShardRef, holder: str) -> int:
    """Raise the fencing epoch and return it."""
    row = read_head(tx, key, pk, shard)
    head = replace(row.head, epoch=row.head.epoch + 1)
    write_head(tx, key, pk, shard, replace(row, head=head, holder=holder))
    return head.epoch


def read_head(tx: Transaction, key: bytes, pk: int, shard: ShardRef) -> HeadRow:
    """The head, its HMAC and its last tick checked."""
    found = tx.rows(f"SELECT {_HEAD} FROM head WHERE incarnation_pk = ? AND shard = ?", pk, shard.shard)  # noqa: S608  # nosec B608  # a literal list
    if not found:
        raise IntegrityError(f"{shard_words(shard)} lost its head")
    t, epoch, sealed, chain, published_t, mark, folded_t, folded_chain, mac, holder = found[0]
    sealed = None if sealed is None else blob(sealed)
    row = HeadRow(
        Head(t, epoch, sealed, blob(chain), published_t, mark, folded_t), blob(folded_chain), holder
    )
    check_row(key, b"head", blob(mac), shard_words(shard), *_head_fields(shard, row))
    last = tx.rows(
        "SELECT t, chain FROM tick WHERE incarnation_pk = ? AND shard = ? ORDER BY t DESC LIMIT 1",
        pk,
        shard.shard,
    )
    if (last[0][0], blob(last[0][1])) != (t, row.head.chain) if last else t != folded_t:
        raise IntegrityError(f"{shard_words(shard)} lost rows at its end")
    return row


def require_current(head: Head, epoch: int) -> None:
    """Refuse a holder whose fencing epoch is not the shard's current one."""
    if epoch != head.epoch:
        raise Fenced(f"fencing epoch {epoch} is over, the shard's is {head.epoch}")


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
    write_head(tx, key, pk, shard, replace(row, head=head))


def insert_head(tx: Transaction, key: bytes, pk: int, opened: OpenedStream, shard: int) -> None:
    """A shard's head before its first tick."""
    ref = opened.shard(shard)
    start = link(
        key,
        b"start",
        opened.stream_id,
        plain_json([opened.name, ref.incarnation, shard]).encode(),
    )
    row = HeadRow(Head(0, 0, None, start, 0, 0, 0), start, "")
    mac = seal_row(key, b"head", *_head_fields(ref, row))
    tx.run(
        "INSERT INTO head (incarnation_pk, shard, t, epoch, holder, sealed, chain, published_t,"
        " published_mark, folded_t, folded_chain, mac) VALUES (?, ?, 0, 0, '', NULL, ?, 0, 0, 0, ?, ?)",
        *(pk, shard, start, start, mac),
    )


def write_head(tx: Transaction, key: bytes, pk: int, shard: ShardRef, row: HeadRow) -> None:
    """Replace a head, under a fresh HMAC."""
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


def shard_words(shard: ShardRef) -> str:
    """A shard in words, for errors."""
    return f"stream {shard.stream}, incarnation {shard.incarnation}, shard {shard.shard}"


def _head_fields(shard: ShardRef, row: HeadRow) -> tuple[object, ...]:
    head = row.head
    return (
        *(shard.stream, shard.incarnation, shard.shard, head.t, head.epoch, sealed_digest(head.sealed)),
        *(head.chain, head.published_t, head.published_mark, head.folded_t, row.folded_chain, row.holder),
    )
