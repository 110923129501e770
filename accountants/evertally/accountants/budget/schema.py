"""The ledger's tables, for both databases, and the migrations between their versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from evertally.accountants.budget import charge_states, kept_answers
from evertally.accountants.budget.chain import link
from evertally.accountants.budget.sql import StorageError, Transaction
from evertally.errors import IntegrityError

__all__ = ["Dialect", "MIGRATIONS", "is_current", "migrate"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the two databases write differently; `append_only` guards the tables of each version."""

    integer: str
    blob: str
    identity: str
    table_end: str
    append_only: Mapping[int, tuple[str, ...]]


_VERSION_1: Final = """
CREATE TABLE scope (
  scope_id {identity}, name TEXT NOT NULL UNIQUE, definition TEXT NOT NULL,
  cap_main {integer} NOT NULL, cap_epsilon {integer} NOT NULL, cap_delta {integer} NOT NULL,
  main {integer} NOT NULL, epsilon {integer} NOT NULL, delta {integer} NOT NULL,
  seq {integer} NOT NULL, chain {blob} NOT NULL, mac {blob} NOT NULL,
  CHECK (main BETWEEN 0 AND cap_main
    AND epsilon BETWEEN 0 AND cap_epsilon AND delta BETWEEN 0 AND cap_delta));
CREATE TABLE charge (
  scope_id {integer} NOT NULL REFERENCES scope, seq {integer} NOT NULL, charge_id TEXT NOT NULL,
  event TEXT NOT NULL, principal TEXT NOT NULL, line TEXT NOT NULL,
  main {integer} NOT NULL, epsilon {integer} NOT NULL, delta {integer} NOT NULL,
  at_ms {integer} NOT NULL, chain {blob} NOT NULL, PRIMARY KEY (scope_id, seq)){table_end};
CREATE TABLE charge_state (
  charge_id TEXT PRIMARY KEY, scope_id {integer} NOT NULL REFERENCES scope, status TEXT NOT NULL,
  principal TEXT NOT NULL, line TEXT NOT NULL, main {integer} NOT NULL, epsilon {integer} NOT NULL,
  delta {integer} NOT NULL, expires_ms {integer} NOT NULL){table_end};
CREATE INDEX charge_expiry ON charge_state (scope_id, status, expires_ms);
CREATE TABLE member (
  scope_id {integer} NOT NULL REFERENCES scope, group_name TEXT NOT NULL, member TEXT NOT NULL,
  main {integer} NOT NULL, PRIMARY KEY (scope_id, group_name, member)){table_end};
CREATE INDEX member_peak ON member (scope_id, group_name, main);
CREATE TABLE answer (
  principal TEXT NOT NULL, idempotency_key TEXT NOT NULL, digest {blob} NOT NULL, body {blob} NOT NULL,
  PRIMARY KEY (principal, idempotency_key)){table_end};
CREATE TABLE stream (
  stream_pk {identity}, name TEXT NOT NULL UNIQUE, next_incarnation {integer} NOT NULL,
  next_key_index {integer} NOT NULL);
CREATE TABLE stream_key (
  stream_pk {integer} NOT NULL REFERENCES stream, key_name TEXT NOT NULL, key_index {integer} NOT NULL,
  PRIMARY KEY (stream_pk, key_name), UNIQUE (stream_pk, key_index)){table_end};
CREATE TABLE incarnation (
  incarnation_pk {identity}, stream_pk {integer} NOT NULL REFERENCES stream, incarnation {integer} NOT NULL,
  stream_id {blob} NOT NULL UNIQUE, shards {integer} NOT NULL, descriptor TEXT NOT NULL,
  digest {blob} NOT NULL, scope_id {integer} NOT NULL REFERENCES scope,
  charge_id TEXT NOT NULL UNIQUE, mac {blob} NOT NULL, UNIQUE (stream_pk, incarnation));
CREATE TABLE incarnation_key (
  incarnation_pk {integer} NOT NULL REFERENCES incarnation, position {integer} NOT NULL,
  key_name TEXT NOT NULL, key_index {integer} NOT NULL,
  PRIMARY KEY (incarnation_pk, position), UNIQUE (incarnation_pk, key_index)){table_end};
CREATE TABLE head (
  incarnation_pk {integer} NOT NULL REFERENCES incarnation, shard {integer} NOT NULL, t {integer} NOT NULL,
  epoch {integer} NOT NULL, holder TEXT NOT NULL, sealed {blob}, chain {blob} NOT NULL,
  published_t {integer} NOT NULL, published_mark {integer} NOT NULL,
  folded_t {integer} NOT NULL, folded_chain {blob} NOT NULL, mac {blob} NOT NULL,
  PRIMARY KEY (incarnation_pk, shard), CHECK (folded_t <= published_t AND published_t <= t)){table_end};
CREATE TABLE tick (
  incarnation_pk {integer} NOT NULL, shard {integer} NOT NULL, t {integer} NOT NULL, chain {blob} NOT NULL,
  PRIMARY KEY (incarnation_pk, shard, t)){table_end};
CREATE TABLE released (
  incarnation_pk {integer} NOT NULL, t {integer} NOT NULL, key_index {integer} NOT NULL,
  shard {integer} NOT NULL, value TEXT NOT NULL, stderr TEXT NOT NULL, tick_end_ms {integer} NOT NULL,
  PRIMARY KEY (incarnation_pk, t, key_index)){table_end}
"""

_VERSION_2: Final = """
CREATE TABLE horizon (
  incarnation_pk {integer} NOT NULL REFERENCES incarnation, number {integer} NOT NULL,
  slack_horizon {integer} NOT NULL, mac {blob} NOT NULL, PRIMARY KEY (incarnation_pk, number)){table_end}
"""

_VERSION_3: Final = "ALTER TABLE charge_state ADD COLUMN mac {blob}"

_VERSION_4: Final = "ALTER TABLE answer ADD COLUMN mac {blob}"

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
"""MIGRATIONS[v] leads from version v to v + 1. Released ones are never edited."""
_FILL: Final[dict[int, Callable[[Transaction, bytes], None]]] = {
    3: charge_states.seal_all,
    4: kept_answers.seal_all,
}
"""What fills new columns of old rows, by the version that is reached."""

_META: Final = "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"


def is_current(tx: Transaction, chain_key: bytes) -> bool:
    """True where the tables are at this program's version and the key is theirs."""
    try:
        meta: dict[str, str] = dict(tx.rows("SELECT name, value FROM meta"))
    except (StorageError, IntegrityError):
        return False
    wanted = {"schema_version": str(len(MIGRATIONS)), "chain_key": _fingerprint(chain_key)}
    return {name: meta.get(name) for name in wanted} == wanted


def migrate(tx: Transaction, dialect: Dialect, chain_key: bytes) -> None:
    """Bring the tables to this program's version, inside one transaction, and check the ledger's key.

    Raises IntegrityError for a ledger written by a newer program and for another ledger's key.
    """
    tx.run(_META)
    meta: dict[str, str] = dict(tx.rows("SELECT name, value FROM meta"))
    version, known = int(meta.get("schema_version", "0")), len(MIGRATIONS)
    if version > known:
        raise IntegrityError(
            f"the ledger has schema version {version}, this program knows {known}: a downgrade is refused"
        )
    fingerprint = _fingerprint(chain_key)
    if version and meta.get("chain_key") != fingerprint:
        raise IntegrityError("the chain key is not the one this ledger was created with")
    for reached, script in enumerate(MIGRATIONS[version:], version + 1):
        for statement in (*_statements(script, dialect), *dialect.append_only.get(reached, ())):
            tx.run(statement)
        if reached in _FILL:
            _FILL[reached](tx, chain_key)
    if version == 0:
        tx.run("INSERT INTO meta (name, value) VALUES ('chain_key', ?)", fingerprint)
        tx.run("INSERT INTO meta (name, value) VALUES ('schema_version', ?)", str(known))
    elif version < known:
        tx.run("UPDATE meta SET value = ? WHERE name = 'schema_version'", str(known))


def _fingerprint(chain_key: bytes) -> str:
    return link(chain_key, b"fingerprint", b"", b"").hex()


def _statements(script: str, dialect: Dialect) -> list[str]:
    text = script.format(
        integer=dialect.integer, blob=dialect.blob, identity=dialect.identity, table_end=dialect.table_end
    )
    return [statement.strip() for statement in text.split(";") if statement.strip()]
