"""The selector: counts undeclared keys with noise and shows those that reach the threshold.

One Kafka transaction holds the keys that are shown, the sealed changelog of candidates and the position,
under a producer that has fenced every older owner.
"""

from __future__ import annotations

import hmac
import logging
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from evertally.errors import IntegrityError
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.candidates import decode_counts, key_record
from evertally.pipelines.kafka.changelog import read_changelog
from evertally.pipelines.kafka.collector import TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.event_batches import KEY_LENGTH_MAX
from evertally.pipelines.kafka.key_selection import Candidate, KeySelector, SelectionSpec, slot_names
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.partition_stage import PartitionStage, partition_stage
from evertally.pipelines.kafka.position_text import decode_position_text, encode_position_text
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions

__all__ = ["select_stage"]

_LOG: Final = logging.getLogger(__name__)
_TICKS_A_TURN: Final = 64
_TRANSACTION_TIMEOUT_MS: Final = 15_000
_NONCE_BYTES: Final = 12
_STATE: Final = struct.Struct(f">QqH{4 * KEY_LENGTH_MAX}s")  # of one length for every key


def select_stage(context: StreamContext, selection: SelectionSpec) -> PartitionStage:
    """The stage that selects keys while this member owns the one partition of the candidates topic."""
    config = context.config
    return partition_stage(
        config, "select", config.topics.candidates, lambda _, member: _Selector(context, selection, member)
    )


class _Selector:
    """The selection while this member owns it."""

    def __init__(self, context: StreamContext, selection: SelectionSpec, member: GroupMember) -> None:
        config = context.config
        self._config: Final = config
        self._context: Final = context
        self._member: Final = member
        self._slots: Final = slot_names(selection.slots)
        self._sealer: Final = context.sealer(config.topics.candidates)
        self._secret: Final = context.secret("closing")
        self._cipher: Final = AESGCMSIV(self._secret)
        self._state_stop = 0
        self._transactions: Final = Transactions(
            config.broker,
            f"{config.topics.prefix}.select.0",
            timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_bytes=config.max_request_bytes,
        )
        try:
            self._transactions.begin_epoch()  # before anything is read: an older owner can add nothing now
            offset, text = member.committed(0)
            opened = context.opened
            position, self._state_stop = decode_position_text(text, context.life, opened.incarnation, offset)
            self._collector: Final = TickCollector(context.partitions.events, position)
            self._selector: Final = KeySelector(
                selection,
                config.spec,
                context.key_file,
                opened.stream_id,
                opened.incarnation,
                t=position.through,
                candidates=self._replay(),
            )
            member.seek(0, position.resume)
        except BaseException:
            self.close()
            raise
        _LOG.info("selecting keys from tick %d", position.through + 1)

    def read(self, records: Sequence[Any]) -> None:
        """Take in records of the candidates topic."""
        for record in records:
            piece = self._sealer.open(record.key, record.value, 0)
            if piece is None:
                self._collector.skip_to(record.offset + 1)
            else:
                self._collector.add(record.offset, piece)

    def commit(self) -> bool:
        """Count every tick that all input partitions have ended; commit once."""
        topics, opened = self._config.topics, self._context.opened
        first = self._collector.through + 1
        changes: dict[str, Candidate] = {}
        records: list[Outgoing] = []
        for t, bodies in enumerate(self._collector.close(_TICKS_A_TURN), first):
            changed, shown = self._selector.close_tick(_total(bodies))
            changes |= changed
            for key in shown:
                slot = self._slots[self._selector.slot(key)]
                record = key_record(opened.name, opened.incarnation, key, slot, t)
                records.append(Outgoing(topics.keys, 0, slot.encode(), record))
        if self._collector.through < first:
            return False
        for key, candidate in changes.items():
            records.append(Outgoing(topics.candidate_state, 0, *self._seal(key, candidate)))
        position = self._collector.position()
        text = encode_position_text(self._context.life, opened.incarnation, position, self._state_stop)
        place = TopicPartition(topics.candidates, 0)
        sent = self._transactions.run(
            records, {place: OffsetText(position.resume, text)}, self._member.identity()
        )
        if changes:
            self._state_stop = sent[-1] + 1
        return True

    def close(self) -> None:
        """Give the selection up."""
        self._transactions.close()

    def _replay(self) -> Mapping[str, Candidate]:
        """Every candidate, from the changelog. Raises IntegrityError where it was emptied or altered."""
        place = TopicPartition(self._config.topics.candidate_state, 0)
        candidates: dict[str, Candidate] = {}
        for records, _ in read_changelog(self._config.broker, place, 0, self._state_stop):
            for record in records:
                candidates |= self._unseal(record.key, record.value)
        return candidates

    def _mark(self) -> bytes:
        return f"{self._context.life}.{self._context.opened.incarnation}.".encode()

    def _seal(self, key: str, candidate: Candidate) -> tuple[bytes, bytes]:
        """The record's key is a keyed hash: compaction needs it to be stable, nobody may read it."""
        text = key.encode("utf-8", "surrogatepass")
        name = self._mark() + hmac.digest(self._secret, text, "sha256")
        nonce = os.urandom(_NONCE_BYTES)
        plain = _STATE.pack(candidate.total, candidate.slot, len(text), text)
        return name, nonce + self._cipher.encrypt(nonce, plain, name)

    def _unseal(self, name: bytes | None, value: bytes | None) -> dict[str, Candidate]:
        if name is not None and not name.startswith(self._mark()):
            return {}
        try:
            plain = self._cipher.decrypt((value or b"")[:_NONCE_BYTES], (value or b"")[_NONCE_BYTES:], name)
            total, slot, size, text = _STATE.unpack(plain)
            key = text[:size].decode("utf-8", "surrogatepass")
        except (InvalidTag, ValueError, struct.error):
            raise IntegrityError("a record of the changelog of candidates does not open") from None
        return {key: Candidate(total, slot)}

    def __repr__(self) -> str:
        return "_Selector(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a selector holds exact counts and is not pickled")


def _total(bodies: Sequence[bytes]) -> dict[str, int]:
    total: dict[str, int] = {}
    for body in bodies:
        for key, count in decode_counts(body).items():
            total[key] = total.get(key, 0) + count
    return total
