"""Walking a ledger from end to end: what a holder of the ledger and its key can prove."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field

from evertally.accountants.budget import book, releases
from evertally.accountants.budget.chain import link, tick_bytes
from evertally.accountants.budget.charges import cost, request_from_json
from evertally.accountants.budget.ledger import ChargeRow, OpenedStream
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.budget.sql import Backend, Transaction, read_stored
from evertally.errors import EvertallyError, IntegrityError

__all__ = ["verify_scope", "verify_shard"]

_CHUNK_ROWS = 50_000


@dataclass(slots=True)
class _Replay:
    """A scope's history played again: what it must have spent, and which charges stand."""

    main: int = 0
    epsilon: int = 0
    delta: int = 0
    lines: dict[str, tuple[str, int]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    groups: dict[str, defaultdict[str, int]] = field(default_factory=dict)

    def play(self, scope: Scope, row: ChargeRow) -> str:
        """Apply one row; returns what is wrong with it, "" for nothing."""
        self.main += row.main
        self.epsilon += row.epsilon
        self.delta += row.delta
        before = self.status.get(row.charge_id)
        self.status[row.charge_id] = row.event
        if row.event == "expired":
            return "" if before == "reserved" and row.main == -self._leave(row) else "expires wrongly"
        if before == "reserved":
            return "" if row.event == "committed" and row.main == 0 else "commits wrongly"
        if before is not None or row.event not in ("reserved", "committed"):
            return "is out of order"
        price = cost(scope, request_from_json(json.loads(row.line), row.principal))
        self.lines[row.charge_id] = row.line, price.main
        due = self._join(row.line, price.main)
        short = row.main < due or row.epsilon < price.epsilon or row.delta < price.delta
        return "charges less than its line costs" if short else ""

    def _join(self, line: str, main: int) -> int:
        body = json.loads(line)
        if not body["group"]:
            return main
        members = self.groups.setdefault(body["group"], defaultdict(int))
        peak = max(members.values(), default=0)
        for member in body["members"]:
            members[member] += main
        return max(members.values()) - peak

    def _leave(self, row: ChargeRow) -> int:
        line, main = self.lines.pop(row.charge_id, ("", 0))
        body = json.loads(line) if line else {"group": ""}
        if not body["group"]:
            return main
        members = self.groups[body["group"]]
        peak = max(members.values(), default=0)
        for member in body["members"]:
            members[member] -= main
        return peak - max(members.values(), default=0)


def verify_scope(backend: Backend, key: bytes, name: str) -> tuple[int, list[str]]:
    """(rows, problems): chain, order, recomputed costs, spend <= cap after every row, the stored spend."""
    try:
        return read_stored(backend, lambda tx: _verify_scope(tx, key, name))
    except IntegrityError as error:
        return 0, [f"scope {name}: {error}"]


def _verify_scope(tx: Transaction, key: bytes, name: str) -> tuple[int, list[str]]:
    stored = book.read_scope(tx, key, name)
    chain = link(key, b"scope", b"", stored.scope.definition().encode())
    replay, seq, problems = _Replay(), 0, []
    if stored.caps != stored.scope.caps():
        problems.append(f"scope {name}: its caps are not those of its definition")
    while rows := book.charge_rows(tx, name, seq, _CHUNK_ROWS):
        for row in rows:
            chain = link(key, b"charge", chain, book.row_bytes(row))
            wrong = "is missing before" if row.seq != seq + 1 else _played(replay, stored.scope, row)
            if wrong:
                problems.append(f"scope {name}: row {row.seq} {wrong}")
            seq = row.seq
            spent = (replay.main, replay.epsilon, replay.delta)
            caps = (stored.caps.main, stored.caps.epsilon, stored.caps.delta)
            if any(not 0 <= s <= c for s, c in zip(spent, caps, strict=True)):
                problems.append(f"scope {name}: after row {row.seq} the spend is outside 0..cap")
    if (replay.main, replay.epsilon, replay.delta) != (
        stored.spent.main,
        stored.spent.epsilon,
        stored.spent.delta,
    ):
        problems.append(f"scope {name}: the stored spend is not the sum of its history")
    if seq != stored.seq or chain != stored.chain:
        problems.append(f"scope {name}: its history was altered or cut")
    states = tx.rows(
        "SELECT c.charge_id, c.status FROM charge_state c JOIN scope s ON s.scope_id = c.scope_id"
        " WHERE s.name = ?",
        name,
    )
    if dict(states) != replay.status:
        problems.append(f"scope {name}: the state of a charge is not what its history says")
    return seq, problems


def _played(replay: _Replay, scope: Scope, row: ChargeRow) -> str:
    try:
        return replay.play(scope, row)
    except EvertallyError as error:
        return f"cannot be recomputed: {type(error).__name__}"
    except (ValueError, KeyError, TypeError):
        return "cannot be read"


def verify_shard(
    backend: Backend, key: bytes, pk: int, opened: OpenedStream, shard: int
) -> tuple[int, list[str]]:
    """(rows, problems): head, chain, contiguous ticks, one row for each key in each tick."""
    try:
        return read_stored(backend, lambda tx: _verify_shard(tx, key, pk, opened, shard))
    except IntegrityError as error:
        return 0, [f"stream {opened.name}, incarnation {opened.incarnation}, shard {shard}: {error}"]


def _verify_shard(
    tx: Transaction, key: bytes, pk: int, opened: OpenedStream, shard: int
) -> tuple[int, list[str]]:
    ref = opened.shard(shard)
    what = f"stream {opened.name}, incarnation {opened.incarnation}, shard {shard}"
    stored = releases.read_head(tx, key, pk, ref)
    keys = opened.shard_keys(shard)
    problems: list[str] = []
    chain, t, count = stored.folded_chain, stored.head.folded_t, 0
    step = max(1, _CHUNK_ROWS // max(1, len(keys)))
    while t < stored.head.t:
        last = min(t + step, stored.head.t)
        rows = releases.read_rows(tx, pk, shard, t, last)
        links: dict[int, bytes] = dict(
            tx.rows(
                "SELECT t, chain FROM tick WHERE incarnation_pk = ? AND shard = ? AND t > ? AND t <= ?",
                *(pk, shard, t, last),
            )
        )
        count += len(rows)
        by_tick: defaultdict[int, list[tuple[int, int, str, str, int]]] = defaultdict(list)
        for r in rows:
            by_tick[r.t].append((r.key_index, r.t, str(r.value), r.stderr, r.tick_end_ms))
        for tick in range(t + 1, last + 1):
            chain = link(key, b"tick", chain, tick_bytes(tick, by_tick[tick]))
            if tuple(row[0] for row in by_tick[tick]) != keys:
                return count, [*problems, f"{what}: tick {tick} has not one row for each key"]
            if bytes(links.get(tick, b"")) != chain:
                return count, [*problems, f"{what}: the rows of tick {tick} were altered"]
        t = last
    beyond = tx.rows(
        "SELECT count(*) FROM released WHERE incarnation_pk = ? AND shard = ? AND (t > ? OR t <= ?)",
        *(pk, shard, stored.head.t, stored.head.folded_t),
    )[0][0]
    if beyond:
        problems.append(f"{what}: {beyond} rows stand outside its ticks")
    if chain != stored.head.chain:
        problems.append(f"{what}: its chain does not end in the head")
    return count, problems
