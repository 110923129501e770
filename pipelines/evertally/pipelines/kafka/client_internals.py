"""What this program needs of kafka-python beyond its public interface, all in one place.

kafka-python's public calls wait for a transaction without a deadline, and neither say whether a group is
being rebalanced nor ask for it. Each client is looked over when it is made: where another version of the
library has moved something, the worker does not start, and the message says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import kafka
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.structs import MemberState

from evertally.errors import UnsupportedMechanism

__all__ = [
    "abandon",
    "check_consumer",
    "check_producer",
    "commit_transaction",
    "is_stable",
    "net_client",
    "resume_join",
    "send_offsets",
]

_CONSUMER: Final = ("_coordinator.need_rejoin", "_coordinator.request_rejoin")
_PRODUCER: Final = (
    "_transaction_manager.send_offsets_to_transaction",
    "_transaction_manager.begin_commit",
    "_sender.wakeup",
    "_sender.force_close",
)


def check_consumer(consumer: Any) -> None:
    """Raise UnsupportedMechanism where a consumer in a group lacks something that is used here."""
    _require(consumer, _CONSUMER)


def check_producer(producer: Any) -> None:
    """Raise UnsupportedMechanism where a transactional producer lacks something that is used here."""
    _require(producer, _PRODUCER)


def net_client(*arguments: Any, **options: Any) -> Any:
    """The client's network part, made by us so that one that fails to start can be closed."""
    return KafkaNetClient(*arguments, **options)


def is_stable(consumer: Any) -> bool:
    """Whether the group has agreed on who owns what, with this consumer in it."""
    return consumer.group_metadata().state == MemberState.STABLE and not consumer._coordinator.need_rejoin()


def resume_join(consumer: Any) -> bool:
    """Ask again for a join that was left half done; whether there was one.

    A join that outlives one poll is taken up by the next one, but only while its reason lasts. Where the
    reason was a glimpse of the cluster that has passed (brokers that came and went), the consumer stays
    "rebalancing" for ever, sends no heartbeats, and is put out of the group without noticing.
    """
    stuck = (
        consumer.group_metadata().state == MemberState.REBALANCING and not consumer._coordinator.need_rejoin()
    )
    if stuck:
        consumer._coordinator.request_rejoin()
    return stuck


def send_offsets(producer: Any, offsets: Mapping[Any, Any], membership: object, wait_s: float) -> None:
    """Add offsets to the open transaction. Raises KafkaTimeoutError after `wait_s`."""
    _finish(producer, lambda manager: manager.send_offsets_to_transaction(offsets, membership), wait_s)


def commit_transaction(producer: Any, wait_s: float) -> None:
    """Commit the open transaction. Raises KafkaTimeoutError after `wait_s`; the outcome is then unknown."""
    _finish(producer, lambda manager: manager.begin_commit(), wait_s)


def abandon(producer: Any) -> None:
    """Stop a producer at once and give up what it has in flight; its open transaction is never committed.

    Its own `close` first waits for what is in flight, and where that takes too long leaves the sending
    thread running for ever.
    """
    producer._sender.force_close()
    producer.close(timeout=1)


def _finish(producer: Any, step: Callable[[Any], Any], wait_s: float) -> None:
    result = step(producer._transaction_manager)
    producer._sender.wakeup()
    if not result.wait(timeout_ms=wait_s * 1000):
        raise kafka_errors.KafkaTimeoutError("a transaction took too long")


def _require(client: Any, paths: tuple[str, ...]) -> None:
    for path in paths:
        found = client
        for name in path.split("."):
            found = getattr(found, name, None)
            if found is None:
                raise UnsupportedMechanism(
                    f"kafka-python {kafka.__version__} has no {type(client).__name__}.{path}, which "
                    "transactions with a deadline and safe commits rest on; install a version that "
                    "pyproject.toml names"
                )
