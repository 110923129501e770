"""Released ticks: their rows, their hash chain and their folding, inside a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain as chained
from itertools import groupby, repeat
from operator import itemgetter
from typing import Final, NamedTuple

from evertally.accountants.budget.chain import link, tick_bytes
from evertally.accountants.budget.heads import HeadRow, read_head, require_current, shard_words, write_head
from evertally.accountants.budget.records import Head, OpenedStream, ReleaseRow, ShardRef
from evertally.accountants.budget.sql import Transaction, blob
from evertally.errors import IntegrityError, InvalidParameter, UnsupportedMechanism
from evertally.validation import integer

__all__ = [
    "Tick",
    "append_ticks",
    "chain_at",
    "checked_ticks",
    "fold",
    "read_rows",
    "require_paid",
    "walk",
]

_STDERR: Final = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,4})?", re.ASCII)
_ROWS: Final = (
    "SELECT key_index, t, value, stderr, tick_end_ms FROM released WHERE incarnation_pk = ?"
    " AND t > ? AND t <= ? AND shard = ? ORDER BY t, key_index"
)
Columns = tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...], tuple[int, ...]]


def require_paid(opened: OpenedStream, last: int) -> None:
    """Refuse ticks whose rounding slack nobody has paid for."""
    if opened.slack_horizon is not None and last > opened.slack_horizon:
        raise UnsupportedMechanism(
            f"tick {last} lies past the horizon {opened.slack_horizon} that stream {opened.name} paid for"
        )


class Tick(NamedTuple):
    """One tick's rows in columns, checked; `payload` are the bytes its chain link is over."""

    t: int
    keys: tuple[int, ...]
    values: list[str]
    stderrs: tuple[str, ...]
    ends_ms: tuple[int, ...]
    payload: bytes


def checked_ticks(keys: tuple[int, ...], first: int, rows: Sequence[ReleaseRow], last: int) -> list[Tick]:
    """The rows by tick; refuses any that are not, for first..last in order, one of each key ascending."""
    integer("first", first, low=1)
    integer("last", last, low=first, high=2**62)
    width = len(keys)
    if len(rows) != (last - first + 1) * width:
        raise IntegrityError(f"ticks {first} to {last} need one row for each of {width} keys")
    checked: set[str] = set()
    end, ticks = -(2**62), []
    for t, at in zip(range(first, last + 1), range(0, len(rows), width), strict=True) if width else ():
        key_column, t_column, values, stderrs, ends = zip(*rows[at : at + width], strict=True)
        if key_column != keys or t_column != (t,) * width:
            raise IntegrityError(f"the rows of tick {t} are not one for each key of the shard, in order")
        if {*map(type, values), *map(type, ends)} != {int}:
            raise InvalidParameter("rows", "another type", "integers as value and tick end")
        for stderr in set(stderrs) - checked:
            if not _STDERR.fullmatch(stderr):
                raise InvalidParameter("rows.stderr", stderr[:64], "decimal text")
            checked.add(stderr)
        if ends.count(ends[0]) != width or ends[0] < end:
            raise IntegrityError("one tick has one end, and ends grow")
        end, texts = ends[0], list(map(str, values))
        ticks.append(Tick(t, keys, texts, stderrs, ends, tick_bytes(t, keys, texts, stderrs, ends)))
    return ticks


def append_ticks(
    tx: Transaction, key: bytes, pk: int, shard: ShardRef, epoch: int, ticks: Sequence[Tick], sealed: bytes
) -> Head:
    """Insert the rows of consecutive ticks, extend the chain, replace the sealed state."""
    row = read_head(tx, key, pk, shard)
    require_current(row.head, epoch)
    if row.head.t != ticks[0].t - 1:
        raise IntegrityError(
            f"{shard_words(shard)} stands at tick {row.head.t}; tick {ticks[0].t} does not follow"
        )
    chain, links = row.head.chain, []
    for tick in ticks:
        chain = link(key, b"tick", chain, tick.payload)
        links.append((pk, shard.shard, tick.t, chain))
    tx.insert("tick", ("incarnation_pk", "shard", "t", "chain"), links)
    same_pk, same_shard = repeat(pk), repeat(shard.shard)
    tx.insert(
        "released",
        ("incarnation_pk", "t", "key_index", "shard", "value", "stderr", "tick_end_ms"),
        chained.from_iterable(
            zip(same_pk, repeat(t), keys, same_shard, values, stderrs, ends)
            for t, keys, values, stderrs, ends, _ in ticks
        ),
    )
    head = replace(row.head, t=ticks[-1].t, chain=chain, sealed=sealed)
    write_head(tx, key, pk, shard, replace(row, head=head))
    return head


def walk(
    tx: Transaction,
    key: bytes,
    pk: int,
    shard: ShardRef,
    keys: tuple[int, ...],
    row: HeadRow,
    after_t: int,
    through_t: int,
) -> Iterator[Columns]:
    """Each tick with after_t < t <= through_t in order, its chain recomputed from the one before.

    Raises IntegrityError where a tick has not one row for each key, or other rows than were released.
    """
    what, chain = shard_words(shard), _chain_after(tx, pk, shard, row, after_t)
    ticks = _stored_ticks(tx, pk, shard.shard, after_t, through_t)
    links: dict[int, bytes] = dict(
        tx.rows(
            "SELECT t, chain FROM tick WHERE incarnation_pk = ? AND shard = ? AND t > ? AND t <= ?",
            *(pk, shard.shard, after_t, through_t),
        )
    )
    for t in range(after_t + 1, through_t + 1):
        columns = ticks.get(t, ((), (), (), ()))
        if columns[0] != keys:
            raise IntegrityError(f"{what}: tick {t} has not one row for each key")
        chain = link(key, b"tick", chain, tick_bytes(t, *columns))
        if blob(links.get(t, b"")) != chain:
            raise IntegrityError(f"{what}: the rows of tick {t} were altered")
        yield columns


def read_rows(
    tx: Transaction, key: bytes, pk: int, opened: OpenedStream, shard: ShardRef, after_t: int, ticks: int
) -> list[ReleaseRow]:
    """Rows of at most `ticks` ticks after `after_t` by (t, key_index), as they were released.

    They may be published from here: each is checked against the chain before anybody sees it.
    """
    row = read_head(tx, key, pk, shard)
    head = row.head
    if after_t < head.folded_t:
        raise IntegrityError(f"rows up to tick {head.folded_t} are folded into the checkpoint")
    if after_t >= head.t:
        return []
    keys, through = opened.shard_keys(shard.shard), min(after_t + ticks, head.t)
    return [
        ReleaseRow(k, t, int(value), str(stderr), int(end))
        for t, columns in enumerate(walk(tx, key, pk, shard, keys, row, after_t, through), after_t + 1)
        for k, value, stderr, end in zip(*columns, strict=True)
    ]


def _stored_ticks(tx: Transaction, pk: int, shard: int, after_t: int, through_t: int) -> dict[int, Columns]:
    """The rows by tick, in columns, values as the text that is stored."""
    rows = tx.rows(_ROWS, pk, after_t, through_t, shard)
    ticks: dict[int, Columns] = {}
    for t, group in groupby(rows, itemgetter(1)):
        keys, _, values, stderrs, ends = zip(*group, strict=True)
        ticks[t] = keys, values, stderrs, ends
    return ticks


def chain_at(tx: Transaction, key: bytes, pk: int, shard: ShardRef, t: int) -> bytes:
    """The chain after tick t. Raises IntegrityError for a tick that is not in the ledger or folded."""
    return _chain_after(tx, pk, shard, read_head(tx, key, pk, shard), t)


def _chain_after(tx: Transaction, pk: int, shard: ShardRef, row: HeadRow, t: int) -> bytes:
    if t == row.head.folded_t:
        return row.folded_chain
    found = tx.rows(
        "SELECT chain FROM tick WHERE incarnation_pk = ? AND shard = ? AND t = ?", pk, shard.shard, t
    )
    if not found:
        where = (
            "is folded" if t < row.head.folded_t else "is not in the ledger: what is public is ahead of it"
        )
        raise IntegrityError(f"tick {t} of {shard_words(shard)} {where}")
    return blob(found[0][0])


def fold(tx: Transaction, key: bytes, pk: int, shard: ShardRef, epoch: int, through_t: int) -> int:
    """Remove published rows up to through_t; their chain stays in the head, under its HMAC."""
    row = read_head(tx, key, pk, shard)
    require_current(row.head, epoch)
    if through_t > row.head.published_t:
        raise IntegrityError(f"tick {through_t} is not published; only published rows may be folded")
    if through_t <= row.head.folded_t:
        return 0
    chain = _chain_after(tx, pk, shard, row, through_t)
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
    write_head(tx, key, pk, shard, HeadRow(head, chain, row.holder))
    return int(removed)
