"""Walking a ledger from end to end: what a holder of the ledger and its key can prove.

Costs are recomputed from the lines. A row passes where it charged at least that much, so a ledger stays
whole when a later version of the accountants finds a smaller bound for a line; a larger one is a problem.
No bound depends on time or load: the work they may do is counted in operations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from functools import partial

from evertally.accountants.budget import charge_states, groups, heads, kept_answers, releases, streams
from evertally.accountants.budget.chain import link
from evertally.accountants.budget.charges import request_from_json
from evertally.accountants.budget.lines import CounterLine
from evertally.accountants.budget.records import OpenedStream, VerifyReport
from evertally.accountants.budget.replay import Replay
from evertally.accountants.budget.scope_book import charge_rows, read_scope, row_bytes
from evertally.accountants.budget.sql import Backend, Transaction, read_stored
from evertally.accountants.budget.strays import strays
from evertally.errors import IntegrityError

__all__ = ["verify_ledger"]

_CHUNK_ROWS = 50_000


def verify_ledger(backend: Backend, key: bytes) -> VerifyReport:
    """Walk everything: chains, contiguity, key cover, recomputed costs, spend <= cap after every row."""
    problems = backend.check() + read_stored(backend, strays)
    problems += _guarded(backend, "kept answers", partial(kept_answers.altered, key=key))[1]
    scopes = read_stored(backend, lambda tx: tx.rows("SELECT name FROM scope ORDER BY name"))
    incarnations = read_stored(
        backend,
        lambda tx: tx.rows(
            "SELECT s.name, i.incarnation FROM incarnation i JOIN stream s ON s.stream_pk = i.stream_pk"
            " ORDER BY s.name, i.incarnation"
        ),
    )
    charges, shards, released = 0, 0, 0
    for (name,) in scopes:
        rows, found = _guarded(backend, f"scope {name}", partial(_scope, key=key, name=name))
        charges += rows
        problems += found
    for name, incarnation in incarnations:
        try:
            pk, opened = read_stored(backend, partial(_stream, key=key, name=name, incarnation=incarnation))
        except IntegrityError as error:
            problems.append(str(error))
            continue
        problems += read_stored(backend, partial(_paid, key=key, pk=pk, opened=opened))
        for shard in range(opened.shards):
            walk = partial(_shard, key=key, pk=pk, opened=opened, shard=shard)
            rows, found = _guarded(backend, heads.shard_words(opened.shard(shard)), walk)
            shards += 1
            released += rows
            problems += found
    return VerifyReport(len(scopes), charges, shards, released, tuple(problems))


def _stream(tx: Transaction, key: bytes, name: str, incarnation: int) -> tuple[int, OpenedStream]:
    known = streams.read_stream(tx, key, name, incarnation)
    if known is None:
        raise IntegrityError(f"stream {name} lost incarnation {incarnation}")
    return known


def _guarded(
    backend: Backend, what: str, work: Callable[[Transaction], tuple[int, list[str]]]
) -> tuple[int, list[str]]:
    try:
        return read_stored(backend, work)
    except IntegrityError as error:
        return 0, [f"{what}: {error}"]


def _scope(tx: Transaction, key: bytes, name: str) -> tuple[int, list[str]]:
    """(rows, problems): chain, order, recomputed costs, spend <= cap after every row, the stored spend."""
    stored = read_scope(tx, key, name)
    chain = link(key, b"scope", b"", stored.scope.definition().encode())
    replay, seq, problems = Replay(), 0, []
    if stored.caps != stored.scope.caps():
        problems.append(f"scope {name}: its caps are not those of its definition")
    while rows := charge_rows(tx, name, seq, _CHUNK_ROWS):
        for row in rows:
            chain = link(key, b"charge", chain, row_bytes(row))
            wrong = "is missing before" if row.seq != seq + 1 else replay.play(stored.scope, row)
            if wrong:
                problems.append(f"scope {name}: row {row.seq} {wrong}")
            seq = row.seq
            pairs = zip(astuple(replay.spent), astuple(stored.caps), strict=True)
            if any(not 0 <= spent <= cap for spent, cap in pairs):
                problems.append(f"scope {name}: after row {row.seq} the spend is outside 0..cap")
    if replay.spent != stored.spent:
        problems.append(f"scope {name}: the stored spend is not the sum of its history")
    if seq != stored.seq or chain != stored.chain:
        problems.append(f"scope {name}: its history was altered or cut")
    states = charge_states.read_all(tx, key, name)
    stands = {s.charge_id: (s.status, "" if s.status == "expired" else s.line) for s in states}
    if stands != replay.states():
        problems.append(f"scope {name}: the state of a charge is not what its history says")
    if groups.sums(tx, stored.scope_id) != _group_sums(states):
        problems.append(f"scope {name}: the sums of its groups are not those of its charges")
    return seq, problems


def _group_sums(states: list[charge_states.ChargeState]) -> dict[tuple[str, str], int]:
    """What every member of a group was charged, by (group, member), where it was anything."""
    sums: Counter[tuple[str, str]] = Counter()
    for state in states:
        body = json.loads(state.line)
        if state.status != "expired" and state.main:
            sums.update({(body["group"], member): state.main for member in body["members"]})
    return dict(sums)


def _paid(tx: Transaction, key: bytes, pk: int, opened: OpenedStream) -> list[str]:
    """A stream has a charge of its scope, its horizon is the one that was paid for, no tick lies past it."""
    what = f"stream {opened.name}, incarnation {opened.incarnation}"
    try:
        state = charge_states.read(tx, key, opened.charge_id)
    except IntegrityError as error:
        return [f"{what}: {error}"]
    if state is None or (state.scope, state.status) != (opened.scope, "committed"):
        return [f"{what}: nothing was charged for it"]
    line = request_from_json(json.loads(state.line)).line
    paid = line.parameters.slack_horizon if isinstance(line, CounterLine) else None
    problems = []
    if paid != opened.slack_horizon:
        problems.append(f"{what}: its horizon is not the one its charge paid for")
    (last,) = tx.rows("SELECT max(t) FROM head WHERE incarnation_pk = ?", pk)[0]
    if paid is not None and (last or 0) > paid:
        problems.append(f"{what}: ticks were released past the horizon {paid}")
    return problems


def _shard(tx: Transaction, key: bytes, pk: int, opened: OpenedStream, shard: int) -> tuple[int, list[str]]:
    """(rows, problems): head, chain, contiguous ticks, one row for each key in each tick."""
    ref = opened.shard(shard)
    what = heads.shard_words(ref)
    stored = heads.read_head(tx, key, pk, ref)
    keys = opened.shard_keys(shard)
    t, count = stored.head.folded_t, 0
    step = max(1, _CHUNK_ROWS // max(1, len(keys)))
    while t < stored.head.t:
        last = min(t + step, stored.head.t)
        try:
            ticks = releases.walk(tx, key, pk, ref, keys, stored, t, last)
            count += sum(len(columns[0]) for columns in ticks)
        except IntegrityError as error:
            return count, [str(error)]
        t = last
    problems = []
    beyond = tx.rows(
        "SELECT count(*) FROM released WHERE incarnation_pk = ? AND shard = ? AND (t > ? OR t <= ?)",
        *(pk, shard, stored.head.t, stored.head.folded_t),
    )[0][0]
    if beyond:
        problems.append(f"{what}: {beyond} rows stand outside its ticks")
    return count, problems
