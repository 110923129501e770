"""A job: the Kafka worker's configuration, counted by Beam. Also a program: `python -m ...beam.job`.

python -m evertally.pipelines.beam.job --evertally_config=worker.toml --runner=PrismRunner \
        --prism_location=prism --environment_type=LOOPBACK --streaming
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions

from evertally.errors import (
    EvertallyError,
    IntegrityError,
    InvalidParameter,
)
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.beam.aggregation import aggregation_of, closed_through
from evertally.pipelines.beam.close_parts import CloseParts
from evertally.pipelines.beam.close_ticks import CloseTicks, Closing
from evertally.pipelines.beam.closings_topic import POSITIONS_MAX, ClosingsLog, ClosingsTopic
from evertally.pipelines.beam.elements import DEAD_LETTERS, Counting
from evertally.pipelines.beam.job_end import wait_for_end
from evertally.pipelines.beam.job_metrics import JobMetrics
from evertally.pipelines.beam.kafka_source import KafkaInput, ReadTicks, cuts_to_keep
from evertally.pipelines.beam.letters import WriteDeadLetters
from evertally.pipelines.beam.options import CountOptions
from evertally.pipelines.beam.parts import PartSealer
from evertally.pipelines.beam.refs import KeyRef, LedgerRef, without_password
from evertally.pipelines.beam.release_ticks import ReleaseLive, Releasing
from evertally.pipelines.beam.sink_refs import TopicSinkRef
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamHandle, StreamRef
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition, translated
from evertally.pipelines.kafka.config import WorkerConfig, load_worker_config
from evertally.pipelines.kafka.start import settle_first_offsets
from evertally.pipelines.kafka.topics import check_topics
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.metrics import Listen
from evertally.pipelines.metrics.ledger_reader import read_heads
from evertally.pipelines.metrics.ledger_view import open_view
from evertally.pipelines.metrics.standing import ShardHead

__all__ = ["CountKafka", "Start", "counting_of", "main", "prepare", "run_job", "stream_of"]

_LOG: Final = logging.getLogger(__name__)


class CountKafka(beam.PTransform[Any, Any]):
    """The whole job of a worker's configuration: a topic in, the releases and dead-letter topics out.

    Args:
        config: the declaration.
        start: what `prepare` has found.
        options: the job's own options.
    """

    def __init__(self, config: WorkerConfig, start: Start, options: CountOptions) -> None:
        super().__init__()
        self._config: Final = config
        self._start: Final = start
        self._options: Final = options

    def expand(self, begin: Any) -> Any:
        """The line of every release, or the place of every closing, as a PCollection besides."""
        config, partitions = self._config, self._start.partitions
        broker = without_password(config.broker)
        stream = stream_of(config, self._options)
        counting = counting_of(config, self._options, self._start.closings or stream)
        source = KafkaInput(broker, config.topics.events, partitions, _group(config))
        read = begin | "Kafka" >> ReadTicks(counting, source)
        read[DEAD_LETTERS] | "DeadLetters" >> WriteDeadLetters(broker, config.topics)
        folder = None if config.folder is None else str(config.folder)
        rule, sources, keep = counting.rule, counting.buckets or partitions, cuts_to_keep(counting)
        if self._start.closings is not None:
            step: beam.DoFn = CloseTicks(Closing(self._start.closings, rule, sources, keep))
        else:
            topics = config.topics
            sink = TopicSinkRef(broker, topics.releases, topics.prefix, config.max_request_bytes)
            step = ReleaseLive(Releasing(stream, rule, sources, partitions, keep, sink))
        return read.parts | "Release" >> CloseParts(counting, step, partitions, folder, counted=True)


class Start(NamedTuple):
    """What a job begins with.

    Attributes:
        partitions: of the input.
        closings: where closings go, in place of a release step inside.
    """

    partitions: int
    closings: AggregationRef | None = None


def stream_of(config: WorkerConfig, options: CountOptions) -> StreamRef:
    """The stream with its ledger and key file: on this host, and on workers that release."""
    chain_key = None if config.chain_key_file is None else str(config.chain_key_file)
    here = options.evertally_key if not options.evertally_closings else None
    return StreamRef(
        config.spec, LedgerRef(config.ledger, chain_key), KeyRef(here or str(config.key_file.resolve()))
    )


def counting_of(config: WorkerConfig, options: CountOptions, stream: StreamRef | AggregationRef) -> Counting:
    """How the job counts. Raises InvalidParameter for what only the Kafka worker can do."""
    if config.select is not None:
        raise InvalidParameter(
            "select", "a table", "no such table for a Beam job: the Kafka worker selects keys"
        )
    if config.spec.shards != 1:
        raise InvalidParameter("stream.shards", config.spec.shards, "1 for a Beam job")
    buckets = 0 if config.bound is None else options.evertally_buckets
    counting = Counting(
        stream, config.rule, config.source, config.other, None, buckets, config.dead_letter_hmac
    )
    if options.evertally_closings and cuts_to_keep(counting) > POSITIONS_MAX:
        raise InvalidParameter(
            "stream.skew_s",
            f"{cuts_to_keep(counting)} ticks to read again with lateness_s",
            f"at most {POSITIONS_MAX}: longer ticks, less skew, or a release step inside",
        )
    return counting


def prepare(config: WorkerConfig, options: CountOptions) -> Start:
    """Before a job is submitted: check topics, open the stream, settle where reading begins.

    Raises:
        InvalidParameter: a missing topic, `--evertally_from` at the wrong time, a changed parameter.
        IntegrityError: the topics know the stream, and the ledger does not; the ledger is ahead of closings;
            a release step inside where there are closings.
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
    stream = stream_of(config, options)
    counting_of(config, options, stream)  # what a Beam job cannot do is refused before any charge
    if not _begun(config, stream):
        KeyFile.open_or_create(stream.key.path())
    handle = StreamHandle(stream)
    try:
        handle.positions()  # what is sealed under another key could never be released
        topic = _closings_topic(config, partitions.events)
        closed = closed_through(handle, topic)
        if closed and not options.evertally_closings:
            raise IntegrityError(
                f"the stream has closings up to tick {closed}: it is counted with --closings; a release step "
                "inside would leave their events out"
            )
        begun = closed if options.evertally_closings else handle.head()
        if begun == 0:
            first = OpenTick(handle.life, handle.incarnation, 1)
            settle_first_offsets(
                config.broker,
                _group(config),
                topics.events,
                partitions.events,
                options.evertally_from,
                first,
                begun=handle.head() > 0,
            )
        elif options.evertally_from is not None:
            raise InvalidParameter(
                "--from", options.evertally_from, "no --from after the first start of a stream"
            )
    finally:
        handle.close()
    if not options.evertally_closings:
        return Start(partitions.events)
    keys = None if options.evertally_key is None else KeyRef(options.evertally_key)
    return Start(partitions.events, aggregation_of(stream, topic, keys))


def _closings_topic(config: WorkerConfig, partitions: int) -> ClosingsTopic:
    return ClosingsTopic(
        config.broker, config.topics.prefix, (config.topics.events, partitions), config.max_request_bytes
    )


def _begun(config: WorkerConfig, stream: StreamRef) -> bool:
    """Whether the ledger knows the stream. Raises IntegrityError where it does not and the topics do."""
    store = stream.ledger.open()
    try:
        known = store.find_stream(config.spec.name) is not None
    finally:
        store.close()
    if known:
        return True
    reader = config.broker.reader()
    try:
        with translated():
            names = (config.topics.releases, config.topics.closed)
            begun = any(reader.end_offsets([TopicPartition(name, 0) for name in names]).values())
    finally:
        reader.close(autocommit=False)
    if begun:
        raise IntegrityError(
            f"the topics hold closings or releases of {config.spec.name!r}, but the ledger does not know it: "
            "was the ledger replaced? Starting anew would count without its history"
        )
    return False


def _group(config: WorkerConfig) -> str:
    return f"{config.topics.prefix}.beam"


def run_job(arguments: Sequence[str]) -> str:
    """Build the job of these options, submit it, wait for its end; the state it ended in."""
    options = PipelineOptions(list(arguments))
    ours = options.view_as(CountOptions)
    if ours.evertally_config is None:
        raise InvalidParameter("--evertally_config", None, "the TOML file that declares the stream")
    config = load_worker_config(Path(ours.evertally_config))
    _check_prism(options.get_all_options().get("prism_location"))
    with contextlib.ExitStack() as stack:
        listen = Listen.chosen(config.metrics, ours.evertally_metrics_listen)
        metrics = None if listen is None else JobMetrics(config.spec.name, config.rule, listen)
        if metrics is not None:  # a taken port is known before any charge
            stack.enter_context(metrics)
        start = prepare(config, ours)
        if metrics is not None:
            metrics.begin(_looking(config, start, stack))
        # Prism 2.77 also splits slow bundles of steps with state, and then works on one key twice at a time
        options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")
        pipeline = beam.Pipeline(options=options)
        pipeline | "Count" >> CountKafka(config, start, ours)
        _LOG.info("submitting %s", config.spec.name)
        return wait_for_end(pipeline.run())


def _check_prism(location: str | None) -> None:
    """Refuse a runner that is not there before any charge: Beam looks for it when all else is paid."""
    if location is None or "://" in location or os.access(location, os.X_OK):
        return
    raise InvalidParameter("--prism-location", location, "a program that is there: `make prism` builds it")


def _looking(
    config: WorkerConfig, start: Start, stack: contextlib.ExitStack
) -> Callable[[], Sequence[ShardHead]]:
    """How the operators' plane learns where the shards stand: by what cannot write."""
    if start.closings is not None:
        topic = _closings_topic(config, start.partitions)
        keys = AggregationKeys.open(AggregationKeys.beside(config.key_file))
        sealer = PartSealer(keys.closing, config.spec.name)
        log = ClosingsLog(topic, start.closings.life, start.closings.incarnation, sealer)
        stack.callback(log.close)
        return lambda: [ShardHead(*[log.head()] * 2)]
    view = open_view(config.ledger)
    stack.callback(view.close)
    return lambda: read_heads(view, config.spec.name)


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
