"""A group member over a consumer that plays back what kafka-python does. No broker."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import ConsumerGroupMetadata, MemberState

from evertally.errors import UnsupportedMechanism
from evertally.pipelines.kafka.broker import Broker, Membership, TopicPartition
from evertally.pipelines.kafka.client_internals import abandon, check_consumer, check_producer
from evertally.pipelines.kafka.member import GroupMember


class PlayedConsumer:
    """Each poll first moves partitions, as the network thread does, then hands out what was prefetched."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, list[int], dict[int, list[str]]]] = []
        self.state = MemberState.STABLE
        self.asked = 0
        self._coordinator = SimpleNamespace(need_rejoin=lambda: self.asked > 0, request_rejoin=self._ask)
        self._listener: Any = None

    def _ask(self) -> None:
        self.asked += 1

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0, 1}

    def subscribe(self, _topics: Iterable[str], listener: Any) -> None:
        self._listener = listener

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata("group", 3, "member", "w1", self.state)

    def poll(self, **_: int) -> dict[TopicPartition, list[str]]:
        what, moved, records = self.turns.pop(0)
        places = [TopicPartition("t", number) for number in moved]
        if what:
            getattr(self._listener, f"on_partitions_{what}")(places)
        return {TopicPartition("t", number): found for number, found in records.items()}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> tuple[PlayedConsumer, GroupMember]:
    consumer = PlayedConsumer()
    monkeypatch.setattr(Broker, "member", lambda *_, **__: consumer)
    member = GroupMember(Broker("nowhere:1"), Membership("group", "w1"), "t", max_poll_records=10)
    return consumer, member


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_prefetched_records_of_a_revoked_partition_are_dropped(
    played: tuple[PlayedConsumer, GroupMember], how: str
) -> None:
    """faust-streaming#221, #216: prefetched records are processed after a rebalance."""
    consumer, member = played
    consumer.turns = [
        ("assigned", [0, 1], {0: ["before anyone sought"]}),
        ("", [], {0: ["a"], 1: ["b"]}),
        (how, [0], {0: ["prefetched"], 1: ["c"]}),
        ("assigned", [0], {0: ["before anyone sought"], 1: ["d"]}),
    ]
    found = [member.poll(0) for _ in range(4)]
    assert [polled.records for polled in found] == [{}, {0: ["a"], 1: ["b"]}, {1: ["c"]}, {1: ["d"]}]
    assert [(polled.gone, polled.came) for polled in found] == [
        ((), (0, 1)),
        ((), ()),
        ((0,), ()),
        ((), (0,)),
    ]


def test_a_partition_that_leaves_and_returns_between_two_polls_starts_anew(
    played: tuple[PlayedConsumer, GroupMember],
) -> None:
    consumer, member = played
    consumer.turns = [("assigned", [0], {}), ("", [], {0: ["a"]})]
    member.poll(0)
    member.poll(0)
    consumer._listener.on_partitions_revoked([TopicPartition("t", 0)])
    consumer.turns = [("assigned", [0], {0: ["prefetched"]})]
    polled = member.poll(0)
    assert (polled.gone, polled.came, polled.records) == ((0,), (0,), {})


def test_a_join_left_half_done_is_taken_up_again(played: tuple[PlayedConsumer, GroupMember]) -> None:
    """Otherwise the member sends no heartbeats, is put out of the group, and every commit fails for ever."""
    consumer, member = played
    assert member.joined()
    consumer.turns = [("", [], {})] * 3
    consumer.state = MemberState.REBALANCING
    assert not member.joined(), "no commit while the group is being rebalanced"
    member.poll(0)
    assert consumer.asked == 1
    member.poll(0)
    assert consumer.asked == 1, "a join under way is left alone"
    consumer.state, consumer.asked = MemberState.STABLE, 0
    member.poll(0)
    assert consumer.asked == 0
    assert member.joined()


@pytest.mark.slow
def test_a_client_library_that_has_moved_its_insides_is_refused_by_name() -> None:
    coordinator = SimpleNamespace(need_rejoin=1, request_rejoin=1)
    check_consumer(SimpleNamespace(_coordinator=coordinator))
    with pytest.raises(UnsupportedMechanism, match=r"kafka-python .* has no .*_coordinator\.request_rejoin"):
        check_consumer(SimpleNamespace(_coordinator=SimpleNamespace(need_rejoin=1)))
    with pytest.raises(UnsupportedMechanism, match="pyproject"):
        check_consumer(SimpleNamespace())
    manager = SimpleNamespace(send_offsets_to_transaction=1, begin_commit=1)
    check_producer(
        SimpleNamespace(_transaction_manager=manager, _sender=SimpleNamespace(wakeup=1, force_close=1))
    )
    with pytest.raises(UnsupportedMechanism, match=r"_sender\.wakeup"):
        check_producer(SimpleNamespace(_transaction_manager=manager, _sender=SimpleNamespace()))


@pytest.mark.kafka
def test_the_installed_client_library_has_what_is_used(servers: str) -> None:
    broker = Broker(servers)
    consumer: KafkaConsumer = broker.member(Membership("some-group", "w1"))
    consumer.close(autocommit=False)
    producer: KafkaProducer = broker.producer("some-id", timeout_ms=10_000, max_request_bytes=10**6)
    producer.close()


@pytest.mark.kafka
def test_a_producer_that_is_given_up_in_a_transaction_leaves_no_thread(servers: str) -> None:
    producer: KafkaProducer = Broker(servers).producer("given-up", timeout_ms=10_000, max_request_bytes=10**6)
    producer.init_transactions()
    producer.begin_transaction()
    abandon(producer)
    producer._sender.join(10)
    assert not producer._sender.is_alive()
    abandon(producer)  # twice does no harm
