"""The job's graph: records in, combined in batches, closed in lanes, sealed closings out exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyflink.common import Configuration, Row, Types
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.table import DataTypes, StreamTableEnvironment
from pyflink.table.udf import udf

from evertally.pipelines.flink.functions import LETTER, OUTPUT_ROW, CloseTicks, Combine
from evertally.pipelines.flink.messages import NO_ROWS, Message, lane_of
from evertally.pipelines.flink.parameters import JobParameters
from evertally.pipelines.flink.tables import clock_table, kafka_properties, sink_table, source_table
from evertally.pipelines.kafka.broker import Broker

__all__ = ["Placement", "run"]

_BATCH_ROWS: Final = 10_000
_BATCH_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Placement:
    """How a job runs; may change with every start.

    Attributes:
        name: the job's name.
        parallelism: of all operators but the sinks.
        checkpoint_ms: interval of checkpoints; releases wait for one.
    """

    name: str
    parallelism: int
    checkpoint_ms: int


def run(job: JobParameters, broker: Broker, placement: Placement) -> None:
    """Build the graph and submit it."""
    configuration = Configuration()
    for key, value in _settings(placement).items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(placement.parallelism)
    tables = StreamTableEnvironment.create(env)
    _build(tables, job, kafka_properties(broker))
    env.execute(placement.name)


def _settings(placement: Placement) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": f"{placement.checkpoint_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "false",  # records in flight are not sealed
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.tolerable-failed-checkpoints": "1000",
        "table.exec.uid.generation": "ALWAYS",  # state is found again at another parallelism
        "python.fn-execution.bundle.size": str(_BATCH_ROWS),
        "python.fn-execution.bundle.time": str(_BATCH_MS),
        "python.fn-execution.arrow.batch.size": str(_BATCH_ROWS),
    }


def _build(
    tables: StreamTableEnvironment,
    job: JobParameters,
    properties: dict[str, str],
) -> None:
    """Records -> messages of batches -> lanes -> closings and dead letters."""
    topics, shards = job.topics, job.spec.shards
    group = f"{topics.prefix}.flink-{job.incarnation}"
    tables.execute_sql(source_table("events", topics.events, group, properties))
    tables.execute_sql(clock_table("clock", job.rule.tick_ms))
    sinks = {**properties, "max.request.size": str(job.max_request_bytes)}
    tables.execute_sql(sink_table("closings", topics.closed, shards, sinks))
    tables.execute_sql(sink_table("letters", topics.dead_letters, 1, sinks))
    tables.create_temporary_system_function(
        "combine", udf(Combine(job), result_type=DataTypes.BYTES(), func_type="pandas")
    )
    # the planner does not push a condition below a function that is not deterministic
    batches = "SELECT combine(`value`, `partition`, `offset`) AS message FROM events"
    wakes = f"SELECT ARRAY[{_empty(job)}] AS every_lane FROM clock"  # noqa: S608  # nosec B608  # hex digits
    messages = tables.sql_query(
        f"SELECT message FROM ({batches}) WHERE message IS NOT NULL UNION ALL "  # noqa: S608  # nosec B608  # as above
        f"SELECT message FROM ({wakes}) CROSS JOIN UNNEST(every_lane) AS lanes (message)"
    )
    output = (
        tables.to_data_stream(messages)
        .key_by(_lane_of_row, key_type=Types.INT())
        .process(CloseTicks(job), output_type=OUTPUT_ROW)
        .name("close ticks")
        .uid("close-ticks")
    )
    tables.create_temporary_view("output", output)
    tables.create_temporary_view("closed", _on_its_writer(output, shards) if shards > 1 else output)
    statements = tables.create_statement_set()
    statements.add_insert_sql("INSERT INTO closings SELECT k, v FROM closed WHERE shard >= 0")
    statements.add_insert_sql("INSERT INTO letters SELECT k, v FROM output WHERE shard < 0")
    statements.attach_as_datastream()


def _empty(job: JobParameters) -> str:
    """An empty message for every lane: lanes without events close their ticks too."""
    messages = [Message(lane, [], NO_ROWS).encode().hex() for lane in range(job.lanes)]
    return ", ".join(f"CAST(X'{message}' AS BYTES)" for message in messages)


def _on_its_writer(output: DataStream, shards: int) -> DataStream:
    """Each closing on the writer with the number of its shard; without this operator there is one writer."""
    return (
        output.filter(lambda row: row[0] != LETTER)
        .partition_custom(lambda shard, writers: shard % writers, lambda row: row[0])
        .map(lambda row: row, output_type=OUTPUT_ROW)
        .name("on its writer")
        .uid("on-its-writer")
        .set_parallelism(shards)
    )


def _lane_of_row(row: Row) -> int:
    return lane_of(row[0])
