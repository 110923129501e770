"""A job: the Kafka worker's configuration, counted by Beam. Also a program: `python -m ...beam.job`.

python -m evertally.pipelines.beam.job --evertally_config=worker.toml --runner=PrismRunner \
        --prism_location=prism --environment_type=LOOPBACK --streaming
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions

from evertally.errors import (
    EvertallyError,
    Fenced,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
    StorageFull,
)
from evertally.pipelines.beam.elements import DEAD_LETTERS, Counting
from evertally.pipelines.beam.job_metrics import JobMetrics
from evertally.pipelines.beam.kafka_source import KafkaInput, ReadTicks, cuts_to_keep
from evertally.pipelines.beam.letters import WriteDeadLetters
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.refs import KeyRef, LedgerRef, without_password
from evertally.pipelines.beam.release_ticks import Releasing
from evertally.pipelines.beam.sink_refs import TopicSinkRef
from evertally.pipelines.beam.stream_ref import StreamHandle, StreamRef
from evertally.pipelines.beam.transforms import ReleaseParts
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition, translated
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config
from evertally.pipelines.kafka.start import settle_first_offsets
from evertally.pipelines.kafka.topics import check_topics
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.ledger_reader import read_heads
from evertally.pipelines.metrics.ledger_view import open_view

__all__ = ["CountKafka", "counting_of", "main", "prepare", "run_job"]

_LOG: Final = logging.getLogger(__name__)
_REASONS: Final[dict[str, Callable[[str], EvertallyError]]] = {
    "BudgetExceeded": IntegrityError,  # a budget that refuses is met before the job is submitted
    "StorageFull": StorageFull,
    "Fenced": Fenced,
    "IntegrityError": IntegrityError,
    "InvalidParameter": IntegrityError,
    "ServiceUnavailable": ServiceUnavailable,
}


class CountKafka(beam.PTransform[Any, Any]):
    """The whole job of a worker's configuration: a topic in, the releases and dead-letter topics out.

    Args:
        config: the declaration.
        partitions: partitions of the input topic.
        options: the job's own options.
    """

    def __init__(self, config: WorkerConfig, partitions: int, options: CountOptions) -> None:
        super().__init__()
        self._config: Final = config
        self._partitions: Final = partitions
        self._counting: Final = counting_of(config, options)

    def expand(self, begin: Any) -> Any:
        """The line of every release, as a PCollection besides."""
        config, counting = self._config, self._counting
        broker = without_password(config.broker)
        source = KafkaInput(broker, config.topics.events, self._partitions, _group(config))
        read = begin | "Kafka" >> ReadTicks(counting, source)
        sink = TopicSinkRef(broker, config.topics.releases, config.topics.prefix, config.max_request_bytes)
        releasing = Releasing(
            counting.stream,
            counting.rule,
            counting.buckets or self._partitions,
            self._partitions,
            cuts_to_keep(counting),
            sink,
        )
        folder = None if config.folder is None else str(config.folder)
        read[DEAD_LETTERS] | "DeadLetters" >> WriteDeadLetters(broker, config.topics)
        return read.parts | "Release" >> ReleaseParts(counting, releasing, self._partitions, folder)


def counting_of(config: WorkerConfig, options: CountOptions) -> Counting:
    """How the job counts. Raises InvalidParameter for what only the Kafka worker can do."""
    if config.select is not None:
        raise InvalidParameter(
            "select", "a table", "no such table for a Beam job: the Kafka worker selects keys"
        )
    if config.spec.shards != 1:
        raise InvalidParameter("stream.shards", config.spec.shards, "1 for a Beam job")
    chain_key = None if config.chain_key_file is None else str(config.chain_key_file)
    stream = StreamRef(
        config.spec,
        LedgerRef(config.ledger, chain_key),
        KeyRef(options.evertally_key or str(config.key_file.resolve())),
    )
    buckets = 0 if config.bound is None else options.evertally_buckets
    return Counting(stream, config.rule, config.source, config.other, None, buckets, config.dead_letter_hmac)


def prepare(config: WorkerConfig, options: CountOptions) -> int:
    """Before a job is submitted: check topics, open the stream, settle where reading begins.

    Returns the number of partitions of the input.

    Raises:
        InvalidParameter: a missing topic, `--evertally_from` at the wrong time, a changed parameter.
        IntegrityError: the releases topic knows the stream, and the ledger does not.
        BudgetExceeded: the scope does not admit the stream's charge.
    """
    topics = config.topics
    partitions = check_topics(
        config.broker,
        topics,
        shards=1,
        by_unit=False,  # units are kept on disk, not on topics
        max_request_bytes=config.max_request_bytes,
    )
    stream = counting_of(config, options).stream
    if not stream.key.path().exists():
        KeyFile.open_or_create(stream.key.path())
    _refuse_lost_ledger(config, stream)
    handle = StreamHandle(stream)
    try:
        t = handle.store.head(handle.opened.shard(0)).t
        if t == 0:
            first = OpenTick(handle.opened.stream_id[:8].hex(), handle.opened.incarnation, 1)
            settle_first_offsets(
                config.broker,
                _group(config),
                topics.events,
                partitions.events,
                options.evertally_from,
                first,
                begun=False,
            )
        elif options.evertally_from is not None:
            raise InvalidParameter(
                "--from", options.evertally_from, "no --from after the first start of a stream"
            )
    finally:
        handle.close()
    return partitions.events


def _refuse_lost_ledger(config: WorkerConfig, stream: StreamRef) -> None:
    store = stream.ledger.open()
    try:
        known = store.find_stream(config.spec.name) is not None
    finally:
        store.close()
    if known:
        return
    reader = config.broker.reader()
    try:
        with translated():
            place = TopicPartition(config.topics.releases, 0)
            begun = bool(reader.end_offsets([place])[place])
    finally:
        reader.close(autocommit=False)
    if begun:
        raise IntegrityError(
            f"the releases topic holds {config.spec.name!r}, but the ledger does not know it: was the ledger "
            "replaced? Starting anew would count without its history"
        )


def _group(config: WorkerConfig) -> str:
    return f"{config.topics.prefix}.beam"


def run_job(arguments: Sequence[str]) -> str:
    """Build the job of these options, submit it, wait for its end; the state it ended in."""
    options = PipelineOptions(list(arguments))
    ours = options.view_as(CountOptions)
    if ours.evertally_config is None:
        raise InvalidParameter("--evertally_config", None, "the TOML file that declares the stream")
    config = load_worker_config(Path(ours.evertally_config))
    with contextlib.ExitStack() as stack:
        plane = _operators_plane(config, ours, stack)  # a taken port is known before any charge
        partitions = prepare(config, ours)
        if plane is not None:
            stack.enter_context(plane)
        # Prism 2.77 splits slow bundles of steps with state as well, and then works on one key twice at a time
        options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")
        pipeline = beam.Pipeline(options=options)
        pipeline | "Count" >> CountKafka(config, partitions, ours)
        _LOG.info("submitting %s", config.spec.name)
        try:
            return str(pipeline.run().wait_until_finish())
        except EvertallyError:
            raise
        except RuntimeError as error:  # a runner's word for a step that failed; its own text may quote data
            raise _reason(str(error)) from None


def _operators_plane(
    config: WorkerConfig, options: CountOptions, stack: contextlib.ExitStack
) -> JobMetrics | None:
    """The operators' plane of the job, where one is declared."""
    listen = Listen.chosen(config.metrics, options.evertally_metrics_listen)
    if listen is None:
        return None
    name, view = config.spec.name, open_view(config.ledger)
    stack.callback(view.close)
    return JobMetrics(name, config.rule, listen, lambda: read_heads(view, name))


def _reason(text: str) -> EvertallyError:
    """The house's error behind a runner's, found by its name; its message is safe to show."""
    for name, kind in _REASONS.items():
        at = text.rfind(f"{name}: ")
        if at >= 0:
            return kind(text[at:].splitlines()[0].split(" [while running")[0])
    return ServiceUnavailable("the job failed in its runner; its own log says where")


def main(arguments: Sequence[str] | None = None) -> int:
    """The module as a program; the exit codes of the command line."""
    try:
        run_job(sys.argv[1:] if arguments is None else arguments)
    except EvertallyError as error:
        print(f"evertally: {error}", file=sys.stderr)  # noqa: T201 - a program's last word
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
