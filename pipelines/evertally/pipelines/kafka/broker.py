"""Connections, consumers and producers of kafka-python with the house's rules.

Bytes only (a deserializer that raises makes every later poll spin), manual commits, no offset reset
(a reset hides a gap), cooperative rebalancing, static membership, read_committed everywhere.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from evertally.errors import EvertallyError, Fenced, IntegrityError, InvalidParameter, ServiceUnavailable
from evertally.pipelines.kafka.client_internals import check_consumer, check_producer, net_client

__all__ = [
    "Broker",
    "Membership",
    "TopicPartition",
    "translated",
]

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass(frozen=True, slots=True)
class Membership:
    """A place in a consumer group.

    Attributes:
        group: group id.
        instance: static member id, stable over restarts: a restart within the session moves nothing.
        session_timeout_ms: a member that is silent so long loses its partitions.
    """

    group: str
    instance: str
    session_timeout_ms: int = 6000


@dataclass(frozen=True, slots=True)
class Broker:
    """How to reach the cluster.

    Attributes:
        bootstrap_servers: "host:port", comma separated.
        security_protocol: one of SECURITY_PROTOCOLS.
        ca_file, cert_file, key_file: PEM files for TLS.
        sasl_mechanism: one of SASL_MECHANISMS.
        username, password: for SASL; the password is in no repr and no log.
        bootstrap_timeout_ms: a cluster that does not answer so long is unreachable.
    """

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    sasl_mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    bootstrap_timeout_ms: int = 15_000
    client_id: str = "evertally"

    def admin(self) -> KafkaAdminClient:
        """A client for topics and groups. Raises ServiceUnavailable with the broker's reason."""
        return self._connect(KafkaAdminClient)

    def reader(self) -> KafkaConsumer:
        """A consumer without a group, for partitions assigned by hand; read_committed."""
        return self._connect(KafkaConsumer, **_READING)

    def group_reader(self, group: str) -> KafkaConsumer:
        """A consumer that reads and commits a group's offsets without joining it."""
        return self._connect(KafkaConsumer, **_READING, group_id=group)

    def member(self, membership: Membership, *, max_poll_records: int = 4000) -> KafkaConsumer:
        """A consumer that is a member of a group. Subscribe with a listener."""
        consumer = self._connect(
            KafkaConsumer,
            **_READING,
            group_id=membership.group,
            group_instance_id=membership.instance,
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=max(200, membership.session_timeout_ms // 6),
            max_poll_records=max_poll_records,
            max_poll_interval_ms=120_000,
        )
        return _checked(consumer, check_consumer)

    def producer(self, transactional_id: str, *, timeout_ms: int, max_request_bytes: int) -> KafkaProducer:
        """A transactional producer; `init_transactions` fences any older one of the same id."""
        producer = self._connect(
            KafkaProducer,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            acks="all",
            linger_ms=0,
            max_request_size=max_request_bytes,
            delivery_timeout_ms=60_000,
            request_timeout_ms=10_000,
            max_block_ms=30_000,
            allow_auto_create_topics=False,
            reconnect_backoff_max_ms=1000,
            metrics_enabled=False,
        )
        return _checked(producer, check_producer)

    def _connect(self, make: Callable[..., Any], **settings: Any) -> Any:
        """A client, or the reason why there is none; one that fails to start leaves no thread behind."""
        made: list[Any] = []

        def remembered(*arguments: Any, **options: Any) -> Any:
            made.append(net_client(*arguments, **options))
            return made[-1]

        with _reason_surfaced(self):
            try:
                return make(**self._options(), kafka_client=remembered, **settings)
            except BaseException:
                for client in made:
                    with contextlib.suppress(Exception):
                        client.close()
                raise

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "security_protocol": self.security_protocol,
            "client_id": self.client_id,
            "bootstrap_timeout_ms": self.bootstrap_timeout_ms,
        }
        for name, path in (
            ("ssl_cafile", self.ca_file),
            ("ssl_certfile", self.cert_file),
            ("ssl_keyfile", self.key_file),
        ):
            if path is not None:
                options[name] = str(path)
        if self.sasl_mechanism is not None:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return options


_READING: Final = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "none",
    "enable_auto_commit": False,
    "partition_assignment_strategy": (CooperativeStickyAssignor,),
    "allow_auto_create_topics": False,
    "fetch_max_wait_ms": 100,
    "request_timeout_ms": 30_000,
    "reconnect_backoff_max_ms": 1000,
    "metadata_max_age_ms": 10_000,
    "metrics_enabled": False,
}


def _checked(client: Any, check: Callable[[Any], None]) -> Any:
    try:
        check(client)
    except BaseException:
        client.close()
        raise
    return client


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Kafka's errors as the house's: what stopped us, never what was read."""
    try:
        yield
    except kafka_errors.OffsetOutOfRangeError:
        raise IntegrityError(
            "records that are still needed were deleted (offset out of range): retention or delete-records "
            "removed them; going on would lose events"
        ) from None
    except kafka_errors.NoOffsetForPartitionError:
        raise IntegrityError("a partition has no committed offset, and none is ever guessed") from None
    except kafka_errors.LogTruncationError:
        raise IntegrityError("the broker lost records that were read already (log truncation)") from None
    except kafka_errors.FencedInstanceIdError:
        raise Fenced("another process runs under this worker's kafka.instance") from None
    except kafka_errors.AuthorizationError as error:
        raise InvalidParameter(
            "kafka", type(error).__name__, "a user with rights on topics and group"
        ) from None
    except kafka_errors.KafkaError as error:
        raise ServiceUnavailable(f"Kafka: {type(error).__name__}") from None


@contextlib.contextmanager
def _reason_surfaced(broker: Broker) -> Iterator[None]:
    """A refused login looks like a timeout to kafka-python's caller; its log knows the reason."""
    listener = _Reasons()
    logger = logging.getLogger("kafka")
    logger.addHandler(listener)
    try:
        yield
    except EvertallyError:
        raise
    except (kafka_errors.KafkaError, OSError) as error:
        name = type(error).__name__
        reason = listener.reason or f"{name}: {str(error).removeprefix(f'{name}: ')}"
        if isinstance(error, kafka_errors.KafkaTimeoutError) and not listener.reason:
            reason += "; is a broker there, and is this its security_protocol?"
        if not listener.reason and listener.cut_off and broker.sasl_mechanism is not None:
            reason = "the broker closes the connection during login: wrong user, password or mechanism?"
        raise ServiceUnavailable(
            f"no connection to Kafka at {broker.bootstrap_servers} ({broker.security_protocol}): {reason}"
        ) from None
    finally:
        logger.removeHandler(listener)


class _Reasons(logging.Handler):
    """Keeps the last authentication or TLS failure that kafka-python logs, and whether it was cut off."""

    _SIGNS: Final = ("uthenticationFailed", "ertificate", "CERTIFICATE", "SSLError", "SaslError", "SaslState")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason = ""
        self.cut_off = False

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record that names a reason."""
        text = record.getMessage()
        if any(sign in text for sign in self._SIGNS):
            self.reason = text
        self.cut_off = self.cut_off or "socket disconnected" in text
