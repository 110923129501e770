"""Rows that belong to nothing: what is left where a scope, a stream or a key of one was taken out by hand.

The chains and HMACs speak for the rows that are reached from a scope or an incarnation. A row that is not
reached any more shows that one of those is gone, and a spend or a release with it.
"""

from __future__ import annotations

from typing import Final

from evertally.accountants.budget.sql import Transaction

__all__ = ["strays"]

_OWNERS: Final = {
    "scope_id": ("scope", ("charge", "charge_state", "member", "incarnation")),
    "stream_pk": ("stream", ("incarnation", "stream_key")),
    "incarnation_pk": ("incarnation", ("incarnation_key", "horizon")),
}
_SHARDS: Final = (
    "SELECT count(*) FROM head r WHERE NOT EXISTS (SELECT 1 FROM incarnation i"
    " WHERE i.incarnation_pk = r.incarnation_pk AND r.shard BETWEEN 0 AND i.shards - 1)"
)
_INCARNATIONS: Final = (
    "SELECT s.name FROM stream s LEFT JOIN incarnation i ON i.stream_pk = s.stream_pk"
    " GROUP BY s.stream_pk, s.name, s.next_incarnation"
    " HAVING count(i.incarnation_pk) <> s.next_incarnation - 1"
)
_KEYS: Final = (
    "SELECT DISTINCT s.name FROM incarnation_key k JOIN incarnation i ON i.incarnation_pk = k.incarnation_pk"
    " JOIN stream s ON s.stream_pk = i.stream_pk LEFT JOIN stream_key n ON n.stream_pk = s.stream_pk"
    " AND n.key_name = k.key_name WHERE n.key_index IS NULL OR n.key_index <> k.key_index"
    " OR k.key_index >= s.next_key_index"
)


def strays(tx: Transaction) -> list[str]:
    """Every table with rows whose owner is gone, and every stream that lost an incarnation or a key."""
    lost = [
        (
            table,
            owner,
            f"SELECT count(*) FROM {table} r WHERE NOT EXISTS"  # noqa: S608  # nosec B608  # literals
            f" (SELECT 1 FROM {owner} o WHERE o.{column} = r.{column})",
        )
        for column, (owner, tables) in _OWNERS.items()
        for table in tables
    ]
    lost.append(("head", "shard", _SHARDS))
    lost += [
        (
            table,
            "shard",
            f"SELECT count(*) FROM {table} r WHERE NOT EXISTS (SELECT 1 FROM head o"  # noqa: S608  # nosec B608  # literals
            " WHERE o.incarnation_pk = r.incarnation_pk AND o.shard = r.shard)",
        )
        for table in ("tick", "released")
    ]
    problems = []
    for table, owner, statement in lost:
        count = tx.rows(statement)[0][0]
        if count:
            problems.append(f"{count} rows of table {table} belong to no {owner}")
    problems += [f"stream {name} lost an incarnation" for (name,) in tx.rows(_INCARNATIONS)]
    problems += [f"stream {name} lost the index of a key" for (name,) in tx.rows(_KEYS)]
    return problems
