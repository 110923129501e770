"""The rival of bench_flink.py: the same counts, with Python called once an event. Flink runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyflink.common import SimpleStringSchema, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import ValueStateDescriptor

TICK_MS = 1000


class CountTicks(KeyedProcessFunction):  # type: ignore[misc]  # PyFlink is not installed here
    """Events of a key and second of arrival."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """See KeyedProcessFunction."""
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: Any) -> Iterator[str]:  # noqa: ARG002 - Flink's signature
        """One event."""
        timers = ctx.timer_service()
        count = self._count.value() or 0
        if count == 0:
            now = timers.current_processing_time()
            timers.register_processing_time_timer(now // TICK_MS * TICK_MS + TICK_MS)
        self._count.update(count + 1)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        """The second is over."""
        yield json.dumps({"t": timestamp // TICK_MS, "k": ctx.get_current_key(), "n": self._count.value()})
        self._count.clear()


def main(servers: str, source: str, target: str, parallelism: int) -> None:
    """Build the job."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(1000)
    events = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(source)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )
    record = KafkaRecordSerializationSchema.builder().set_topic(target)
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(record.set_value_serialization_schema(SimpleStringSchema()).build())
        .build()
    )
    (
        env.from_source(events, WatermarkStrategy.no_watermarks(), "events")
        .map(lambda text: json.loads(text)["k"], output_type=Types.STRING())
        .key_by(lambda key: key, key_type=Types.STRING())
        .process(CountTicks(), output_type=Types.STRING())
        .sink_to(sink)
    )
    env.execute("naive")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
