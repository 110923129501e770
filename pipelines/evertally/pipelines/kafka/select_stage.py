"""The selector: counts undeclared keys with noise and shows those that reach the threshold.

One Kafka transaction holds the keys that are shown, the sealed changelog of candidates and the position,
under a producer that has fenced every older owner.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from evertally.errors import IntegrityError, ServiceUnavailable
from evertally.pipelines.kafka.bound_stage import decode_position_text, encode_position_text
from evertally.pipelines.kafka.broker import TopicPartition, translated
from evertally.pipelines.kafka.candidates import decode_counts, key_record
from evertally.pipelines.kafka.collector import TickCollector
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.key_selection import Candidate, KeySelector, SelectionSpec, slot_names
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions

__all__ = ["SelectStage"]

_LOG: Final = logging.getLogger(__name__)
_POLL_MS: Final = 100
_TICKS_A_TURN: Final = 64
_RETRY_S: Final = 1.0
_TRANSACTION_TIMEOUT_MS: Final = 15_000
_NONCE_BYTES: Final = 12


class SelectStage:
    """Selects keys while this member owns the one partition of the candidates topic."""

    name = "select"

    def __init__(self, context: StreamContext, selection: SelectionSpec) -> None:
        config = context.config
        self._context: Final = context
        self._selection: Final = selection
        self._member: Final = GroupMember(
            config.broker, config.membership(self.name), config.topics.candidates, max_poll_records=500
        )
        self._owned: _Selector | None = None
        self._due_s: float | None = None
        self._ready = False

    def turn(self) -> None:
        """See `Stage`."""
        polled = self._member.poll(_POLL_MS)
        if polled.gone:
            self._drop()
            self._due_s = None
        if polled.came:
            self._due_s = 0.0
        if self._owned is not None:
            self._owned.read(polled.records.get(0, []))
        try:
            if self._due_s is not None and time.monotonic() >= self._due_s:
                self._due_s = time.monotonic() + _RETRY_S
                self._owned = _Selector(self._context, self._selection, self._member)
                self._due_s = None
            if self._owned is not None:
                self._owned.select()
        except ServiceUnavailable as error:
            _LOG.warning("the selector starts over: %s", error)
            self._drop()
            self._due_s = time.monotonic() + _RETRY_S
        self._ready = self._member.joined() and self._due_s is None

    def ready(self) -> bool:
        """See `Stage`."""
        return self._ready

    def drain(self) -> None:
        """See `Stage`."""
        self._drop()
        self._member.leave()

    def _drop(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()


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

    def select(self) -> None:
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
            return
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

    def close(self) -> None:
        """Give the selection up."""
        self._transactions.close()

    def _replay(self) -> Mapping[str, Candidate]:
        """Every candidate, from the changelog. Raises IntegrityError where it was emptied or altered."""
        candidates: dict[str, Candidate] = {}
        place = TopicPartition(self._config.topics.candidate_state, 0)
        reader = self._config.broker.reader()
        try:
            with translated():
                reader.assign([place])
                end = reader.end_offsets([place])[place]
                if end < self._state_stop:
                    raise IntegrityError(f"{place.topic} was emptied or replaced")
                reader.seek(place, reader.beginning_offsets([place])[place])
                while reader.position(place) < end:
                    for record in reader.poll(timeout_ms=1000).get(place, []):
                        candidates |= self._open(record.key, record.value)
        finally:
            reader.close(autocommit=False)
        return candidates

    def _mark(self) -> bytes:
        return f"{self._context.life}.{self._context.opened.incarnation}.".encode()

    def _seal(self, key: str, candidate: Candidate) -> tuple[bytes, bytes]:
        """The record's key is a keyed hash: compaction needs it to be stable, nobody may read it."""
        text = key.encode("utf-8", "surrogatepass")
        name = self._mark() + hmac.digest(self._secret, text, "sha256")
        nonce = os.urandom(_NONCE_BYTES)
        plain = json.dumps([key, candidate.total, candidate.slot]).encode()
        plain += b" " * (-len(plain) % 128)
        return name, nonce + self._cipher.encrypt(nonce, plain, name)

    def _open(self, name: bytes | None, value: bytes | None) -> dict[str, Candidate]:
        if name is not None and not name.startswith(self._mark()):
            return {}
        try:
            plain = self._cipher.decrypt((value or b"")[:_NONCE_BYTES], (value or b"")[_NONCE_BYTES:], name)
            key, total, slot = json.loads(plain)
        except (InvalidTag, ValueError):
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
