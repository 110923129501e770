"""Start the job: the stream is opened and paid for here, on a host that may see ledger and key file.

The cluster never sees either. It gets public parameters in the job's graph, and the aggregation keys as
a file whose path it is told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evertally.errors import InvalidParameter, ServiceUnavailable
from evertally.pipelines.aggregation_keys import AggregationKeys
from evertally.pipelines.flink.distribution import environment, fetch_connector, flink_home
from evertally.pipelines.flink.parameters import check_supported
from evertally.pipelines.flink.rest import FlinkRest
from evertally.pipelines.kafka.aggregation import OpenTick
from evertally.pipelines.kafka.broker import TopicPartition, translated
from evertally.pipelines.kafka.config import WorkerConfig
from evertally.pipelines.kafka.context import StreamContext
from evertally.pipelines.kafka.reading import read_up_to
from evertally.pipelines.kafka.sealed_records import Place
from evertally.pipelines.kafka.start import settle_first_offsets
from evertally.pipelines.kafka.topics import check_topics

__all__ = ["Cluster", "Start", "job_name", "newest_checkpoint", "submit"]

_LOG: Final = logging.getLogger(__name__)
_SUBMITTED: Final = re.compile(r"submitted with JobID ([0-9a-f]{32})")
_CLIENT_TIMEOUT_S: Final = 300
_LOG_LIMIT: Final = 6000
_LAST_RECORDS: Final = 500


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where jobs run.

    Attributes:
        jobmanager: "host:port" of its REST interface.
        conf: Flink's conf folder for the client; None for the one beside the distribution.
        python: the interpreter with PyFlink and evertally on the workers; None for this one.
        connector: the Kafka connector's jar; None to fetch it.
    """

    jobmanager: str
    conf: Path | None = None
    python: Path | None = None
    connector: Path | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """How a job starts.

    Attributes:
        start_from: where to begin at the very first start; None later.
        restore: a savepoint, a checkpoint, or a folder with checkpoints; None to begin.
        parallelism: of all operators but the sinks.
        checkpoint_ms: interval of checkpoints.
        keys_path: where to write the aggregation keys; None for beside the key file.
        workers_keys_path: where the workers find them; None for the same path.
    """

    start_from: str | None = None
    restore: str | None = None
    parallelism: int = 1
    checkpoint_ms: int = 1000
    keys_path: Path | None = None
    workers_keys_path: Path | None = None


def job_name(config: WorkerConfig) -> str:
    """The job's name on the cluster."""
    return f"evertally {config.spec.name}"


def submit(config_path: Path, config: WorkerConfig, cluster: Cluster, start: Start) -> str:
    """Open the stream, write the aggregation keys, start the job; returns its id.

    Raises:
        InvalidParameter: a first start without a place to begin, a later one without a state to restore,
            a job of the stream that runs already.
        IntegrityError: the topics know the stream and the ledger does not.
        BudgetExceeded: the scope does not admit the charge.
        ServiceUnavailable: no JobManager, or it refused the job.
    """
    check_supported(config)
    rest = FlinkRest(cluster.jobmanager)
    running = rest.live_jobs(job_name(config))
    if running:
        raise InvalidParameter("--jobmanager", f"job {running[0]} runs", "a stream without a running job")
    context = _open(config, start)
    try:
        keys_path = start.keys_path or AggregationKeys.beside(config.key_file)
        AggregationKeys.derive(context.key_file, context.opened).write(keys_path)
        fields = {
            "config": str(config_path.resolve()),
            "keys": str((start.workers_keys_path or keys_path).absolute()),
            "life": context.life,
            "incarnation": context.opened.incarnation,
            "horizon": config.spec.paid_horizon(context.opened),
            "shard_of": context.shard_of(),
            "name": job_name(config),
            "parallelism": start.parallelism,
            "checkpoint_ms": start.checkpoint_ms,
        }
    finally:
        context.store.close()
    return _run_client(cluster, start, fields)


def newest_checkpoint(place: str) -> str:
    """The complete checkpoint to restore: `place` itself, or the newest below a local folder.

    A checkpoint that is older than the job's last one repeats closings; the releaser refuses those.
    """
    folder = Path(place.removeprefix("file://").removeprefix("file:"))
    if not folder.is_dir() or (folder / "_metadata").exists():
        return place
    found = sorted(folder.glob("**/chk-*/_metadata"), key=lambda file: file.stat().st_mtime_ns)
    if not found:
        raise InvalidParameter("--restore", place, "a savepoint, or a folder with a complete checkpoint")
    return found[-1].parent.absolute().as_uri()


def _open(config: WorkerConfig, start: Start) -> StreamContext:
    topics = config.topics
    partitions = check_topics(
        config.broker,
        topics,
        shards=config.spec.shards,
        by_unit=config.bound is not None,
        max_request_bytes=config.max_request_bytes,
    )
    places, ever = _last_places(config)
    may_begin = start.start_from is not None
    context = StreamContext.open(config, partitions, begun=ever, may_begin=may_begin)
    try:
        incarnation = context.opened.incarnation
        mine = any((place.life, place.incarnation) == (context.life, incarnation) for place in places)
        group = f"{topics.prefix}.flink-{incarnation}"
        # closings are kept for days only: where none is left, those of this incarnation may have gone
        begun = mine or (ever and not places and _settled(config, group, partitions.events))
        if start.restore is not None:
            if may_begin:
                raise InvalidParameter("--from", start.start_from, "no --from with --restore")
            return context
        if begun:
            raise InvalidParameter(
                "--restore",
                None,
                "a savepoint or the last checkpoint: the stream has begun, and a job without its state "
                "would count events again or lose them",
            )
        settle_first_offsets(
            config.broker,
            group,
            topics.events,
            partitions.events,
            start.start_from,
            OpenTick(context.life, incarnation, 1),
            begun=False,
        )
    except BaseException:
        context.store.close()
        raise
    return context


def _last_places(config: WorkerConfig) -> tuple[list[Place], bool]:
    """Places of the last closings of every shard, and whether there ever were closings or releases."""
    reader = config.broker.reader()
    found = []
    try:
        with translated():
            shards = [TopicPartition(config.topics.closed, shard) for shard in range(config.spec.shards)]
            released = [TopicPartition(config.topics.releases, place.partition) for place in shards]
            beginnings, ends = reader.beginning_offsets(shards), reader.end_offsets(shards)
            for place in shards:
                reader.assign([place])
                reader.seek(place, max(beginnings[place], ends[place] - _LAST_RECORDS))
                for records, _ in read_up_to(reader, place, ends[place]):
                    found += [Place.decode(record.key) for record in records]
            return found, any(ends.values()) or any(reader.end_offsets(released).values())
    finally:
        reader.close(autocommit=False)


def _settled(config: WorkerConfig, group: str, partitions: int) -> bool:
    """Whether an incarnation's job was started before."""
    reader = config.broker.group_reader(group)
    try:
        with translated():
            places = [TopicPartition(config.topics.events, number) for number in range(partitions)]
            reader.assign(places)
            return any(reader.committed(place) is not None for place in places)
    finally:
        reader.close(autocommit=False)


def _run_client(cluster: Cluster, start: Start, fields: dict[str, object]) -> str:
    home = flink_home()
    conf = cluster.conf or Path(os.environ.get("FLINK_CONF_DIR") or home / "conf")
    python = str(cluster.python or sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder) / "job.json"
        description.write_text(json.dumps(fields), "utf-8")
        words = ["bash", str(home / "bin" / "flink"), "run", "-d", "-m", cluster.jobmanager]
        if start.restore is not None:
            words += ["-s", newest_checkpoint(start.restore)]
        words += ["-j", str(cluster.connector or fetch_connector()), "-pyexec", python]
        words += ["-pyclientexec", sys.executable, "-py", str(Path(__file__).with_name("main.py"))]
        words.append(str(description))
        code, output, log = _finish(words, environment(home, conf, Path(folder)))
    submitted = _SUBMITTED.search(output)
    if code != 0 or submitted is None:
        _LOG.debug("%s", log)
        raise ServiceUnavailable(f"the job was not accepted: {(output + log)[-_LOG_LIMIT:]}")
    return submitted[1]


def _finish(words: list[str], variables: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code and outputs of Flink's client, which has processes of its own that may outlive it."""
    try:
        client = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        raise ServiceUnavailable(f"Flink's client cannot be started: {error.strerror}") from None
    with client:
        try:
            output, log = client.communicate(timeout=_CLIENT_TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ServiceUnavailable(
                    f"Flink's client did not end in {_CLIENT_TIMEOUT_S:g} s; see whether the job runs "
                    "before you start it again"
                ) from None
            raise
    return client.returncode, output, log
