"""What the fences prevent: an owner that was stopped wakes up and goes on with what it had in hand.

Each case runs twice: fenced as the product is, and with that one fence taken away. Without it the damage is
there to be seen, so that a fence that no longer works cannot go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kafka_harness import KEYS, KafkaStream, wait_until

from evertally.errors import Fenced, IntegrityError, ServiceUnavailable
from evertally.pipelines.closings import ClosingBlock
from evertally.pipelines.events import EventColumns
from evertally.pipelines.kafka.aggregation import OpenTick, PartitionTally, ShardSums
from evertally.pipelines.kafka.broker import TopicPartition
from evertally.pipelines.kafka.collector import LogPosition, TickCollector
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.member import GroupMember
from evertally.pipelines.kafka.release_sink import TopicSink
from evertally.pipelines.kafka.start import settle_first_offsets
from evertally.pipelines.kafka.sums import add_sums, decode_sums
from evertally.pipelines.kafka.topics import Partitions
from evertally.pipelines.kafka.transactions import OffsetText, Outgoing, Transactions
from evertally.pipelines.outbox import release_lines
from evertally.pipelines.releaser import Releaser
from evertally.pipelines.releases import Release

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
FENCED = pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "the control, without the fence"])


@pytest.fixture
def single(servers: str, tmp_path: Path) -> KafkaStream:
    stream = KafkaStream(servers, tmp_path, partitions=1, kafka_extra="session_timeout_s = 1.5")
    stream.make_topics()
    return stream


def transactions(config: WorkerConfig, name: str) -> Transactions:
    opened = Transactions(config.broker, name, timeout_ms=15_000, max_request_bytes=config.max_request_bytes)
    opened.begin_epoch()
    return opened


def block(config: WorkerConfig, releaser: Releaser, first: int, ticks: int, amount: int) -> ClosingBlock:
    ends = tuple(config.rule.start_ms + t * config.rule.tick_ms for t in range(first, first + ticks))
    sums = np.full((ticks, len(releaser.keys)), amount, dtype=object)
    return ClosingBlock(config.spec.name, releaser.keys, first, sums, b"", ends)


@FENCED
def test_a_releaser_that_wakes_up_writes_no_tick_again(single: KafkaStream, fenced: bool) -> None:
    """The fence: its successor took the transactional id over; the older producer can write no more."""
    config = load_worker_config(single.config())
    context = StreamContext.open(config, Partitions(1, 0), begun=False, may_begin=True)
    name = f"{config.topics.prefix}.release.0"

    def sink(releaser: Releaser, producer: Transactions) -> TopicSink:
        place = TopicPartition(config.topics.releases, 0)
        return TopicSink(config.broker, place, releaser.header, producer, lambda: ({}, None))

    try:
        zombie = Releaser.open(context.store, config.spec, context.key_file, holder="zombie")
        zombie_producer = transactions(config, name if fenced else f"{name}.of-its-own")
        zombie_sink = sink(zombie, zombie_producer)
        zombie.release(block(config, zombie, 1, 2, 5))
        zombie.publish(zombie_sink)
        zombie.release(block(config, zombie, 3, 1, 5))
        rows = list(release_lines(context.opened, context.store.releases(context.opened.shard(0), 2, 100)))
        # here it is stopped: tick 3 stands in the ledger, and its rows are in its hand
        successor = Releaser.open(context.store, config.spec, context.key_file, holder="successor")
        producer = transactions(config, name)
        assert successor.next_tick == 4
        successor.publish(sink(successor, producer))
        # and here it wakes up
        if fenced:
            with pytest.raises(ServiceUnavailable):
                zombie_sink.append(rows)
        else:
            zombie_sink.append(rows)
        with pytest.raises(Fenced):  # the ledger's own fence stands in both cases
            zombie.release(block(config, zombie, 4, 1, 777))
        zombie_producer.close()
        producer.close()
    finally:
        context.store.close()
    written = Counter(
        (release.key, release.t)
        for release in (Release.decode(r.value) for r in single.raw("releases") if r.key is not None)
    )
    assert set(written) == {(key, t) for key in KEYS for t in (1, 2, 3)}
    twice = sorted(place for place, times in written.items() if times > 1)
    assert twice == ([] if fenced else [(key, 3) for key in sorted(KEYS)])


@FENCED
def test_an_aggregator_that_wakes_up_counts_nothing_again(single: KafkaStream, fenced: bool) -> None:
    """The fence: its commit names its place in the group, which the broker has given to another since."""
    config = load_worker_config(single.config())
    context = StreamContext.open(config, Partitions(1, 0), begun=False, may_begin=True)
    group, topics = config.membership("aggregate").group, config.topics
    incarnation = context.opened.incarnation
    first = OpenTick(context.life, incarnation, 1)
    settle_first_offsets(config.broker, group, topics.events, 1, "earliest", first, begun=False)
    single.send({"k": key} for key in KEYS * 5)
    sealer = context.sealer(topics.closed)
    place = TopicPartition(topics.events, 0)

    def member(instance: str) -> GroupMember:
        one = load_worker_config(single.config(instance))
        made = GroupMember(one.broker, one.membership("aggregate"), topics.events, max_poll_records=500)

        def assigned() -> bool:
            made.poll(100)
            return made.joined() and made.owns() == {0}

        wait_until(f"{instance} owns the partition", assigned)
        return made

    def counted() -> tuple[list[Outgoing], dict[TopicPartition, OffsetText]]:
        """All events of the partition, as an aggregator has them in hand just before its commit."""
        tally = PartitionTally(0, 0, 1, config.rule, ShardSums(context.shard_of(), 1))
        keys = np.array([position for position in range(len(KEYS)) for _ in range(5)])
        tally.add(EventColumns(np.full(len(keys), config.rule.start_ms), keys, None, None), len(keys))
        pieces = [
            Outgoing(topics.closed, shard, *sealer.seal(piece, shard))
            for shard, piece in tally.cut(context.life, incarnation, 1)
        ]
        text = OpenTick(context.life, incarnation, 2).encode()
        return pieces, {place: OffsetText(tally.position, text)}

    zombie = member("w1")
    identity = zombie.identity()
    zombie_producer = transactions(config, f"{topics.prefix}.w1.aggregate")
    in_hand = counted()
    zombie.leave()  # it is stopped: no heartbeat any more, and its session ends
    single.kafka_extra = ""  # its own session need not be short: a busy machine could end it as well
    successor = member("w2")
    producer = transactions(config, f"{topics.prefix}.w2.aggregate")
    producer.run(*counted(), successor.identity())
    if fenced:
        with pytest.raises(ServiceUnavailable):
            zombie_producer.run(*in_hand, identity)
    else:
        zombie_producer.run(*in_hand, group)  # a commit in the group's name, by nobody in particular
    zombie_producer.close()
    producer.close()
    successor.leave()
    context.store.close()
    pieces = []
    for record in single.raw("closed"):
        piece = sealer.open(record.key, record.value, 0)
        assert piece is not None
        pieces.append(piece)
    amounts = add_sums(decode_sums(piece.body) for piece in pieces)
    assert amounts == dict.fromkeys(range(len(KEYS)), 5 if fenced else 10)
    collector = TickCollector(1, LogPosition(0, 0, 0, ()))
    collector.add(0, pieces[0])
    if not fenced:  # even then nothing is released: the sequence of the source repeats itself
        with pytest.raises(IntegrityError, match="repeats or lacks"):
            collector.add(1, pieces[1])
