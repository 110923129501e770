"""`evertally flink`: start and stop the aggregating job on a Flink cluster."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, emit
from evertally.pipelines.cli.worker import LogLevel, begin_service

if TYPE_CHECKING:
    from evertally.pipelines.kafka.config import WorkerConfig
    from evertally.pipelines.metrics import Listen

__all__ = ["app"]

app = typer.Typer(
    help="Aggregate on a Flink cluster; `evertally release` then releases what it closes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Config = Annotated[Path, typer.Option("--config", "-c", help="TOML file that declares the stream.")]
JobManager = Annotated[
    str, typer.Option("--jobmanager", help="host:port of the JobManager's REST interface.")
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        help="host:port of /internal/metrics, for operators only; default: the TOML's table `metrics`.",
    ),
]


@app.command()
def submit(
    config: Config,
    jobmanager: JobManager = "127.0.0.1:8081",
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Only at the very first start: earliest, latest, an RFC 3339 time, or epoch milliseconds.",
        ),
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(
            "--restore",
            help="At every later start: a savepoint, a checkpoint, or a local folder with checkpoints.",
        ),
    ] = None,
    parallelism: Annotated[
        int, typer.Option("--parallelism", min=1, max=1024, help="Slots to spread over.")
    ] = 1,
    checkpoint_s: Annotated[
        float,
        typer.Option(
            "--checkpoint-s", min=0.1, max=3600, help="Seconds between checkpoints; a release waits for one."
        ),
    ] = 1.0,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="Where to write the aggregation keys; default: beside the key file."),
    ] = None,
    workers_keys: Annotated[
        Path | None,
        typer.Option("--workers-keys", help="Where the workers find them; default: the same path."),
    ] = None,
    workers_python: Annotated[
        Path | None,
        typer.Option("--workers-python", help="Python with PyFlink and evertally on the workers."),
    ] = None,
    connector: Annotated[
        Path | None,
        typer.Option("--connector", help="The Kafka connector's jar; by default Maven fetches it."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and watch the job as `evertally flink watch` does.")
    ] = False,
    metrics_listen: MetricsListen = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Open the stream (its one charge at the first start) and start the job; run it where PyFlink is.

    The workers get public parameters and a file of aggregation keys, never the key file or the ledger.
    """
    begin_service(as_json=as_json, log_format=log_format, level=LogLevel.INFO)
    from evertally.pipelines.flink.submit import Cluster, Start, submit
    from evertally.pipelines.kafka.config import load_worker_config

    declared = load_worker_config(config)
    listen = _listen(declared, metrics_listen) if watch else None  # a mistake is known before any charge
    job = submit(
        config,
        declared,
        Cluster(jobmanager, python=workers_python, connector=connector),
        Start(start_from, restore, parallelism, round(checkpoint_s * 1000), keys, workers_keys),
    )
    emit({"ok": True, "job": job}, f"{declared.spec.name}: job {job} was submitted")
    if listen is not None:
        _watch(declared, jobmanager, listen)


@app.command()
def watch(
    config: Config,
    jobmanager: JobManager = "127.0.0.1:8081",
    metrics_listen: MetricsListen = None,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Serve the health of the stream's job to operators until SIGTERM (exit 0); the job goes on.

    It holds neither a key nor the ledger; `evertally release` has a plane of its own for what is released.
    """
    begin_service(as_json=False, log_format=log_format, level=LogLevel.INFO)
    from evertally.pipelines.kafka.config import load_worker_config

    declared = load_worker_config(config)
    _watch(declared, jobmanager, _listen(declared, metrics_listen))


@app.command()
def stop(
    config: Config,
    savepoints: Annotated[
        str, typer.Option("--savepoints", help="Folder or URI that the cluster writes the savepoint to.")
    ],
    jobmanager: JobManager = "127.0.0.1:8081",
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=1, help="Seconds to wait for the savepoint.")
    ] = 120.0,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Stop the stream's job with a savepoint; what is closed is committed and will be released.

    Prints the savepoint, which the next `submit --restore` begins with.
    """
    begin_service(as_json=as_json, log_format=log_format, level=LogLevel.INFO)
    from evertally.errors import InvalidParameter
    from evertally.pipelines.flink.rest import FlinkRest
    from evertally.pipelines.flink.submit import job_name
    from evertally.pipelines.kafka.config import load_worker_config

    declared = load_worker_config(config)
    rest = FlinkRest(jobmanager)
    running = rest.live_jobs(job_name(declared))
    if not running:
        raise InvalidParameter("--jobmanager", "no job of this stream", "a cluster that runs the job")
    place = rest.stop(running[0], savepoints, timeout_s=timeout_s)
    emit({"ok": True, "job": running[0], "savepoint": place}, place)


def _listen(declared: WorkerConfig, address: str | None) -> Listen:
    from evertally.errors import InvalidParameter
    from evertally.pipelines.metrics import Listen

    listen = Listen.chosen(declared.metrics, address)
    if listen is None:
        raise InvalidParameter("--metrics-listen", None, "host:port, or a table [metrics] in the TOML")
    listen.require_private()
    return listen


def _watch(declared: WorkerConfig, jobmanager: str, listen: Listen) -> None:
    from evertally.pipelines.flink.job_health import JobHealth, watch_job
    from evertally.pipelines.flink.rest import FlinkRest
    from evertally.pipelines.flink.submit import job_name

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    health = JobHealth(declared.spec.name, job_name(declared), FlinkRest(jobmanager))
    watch_job(health, listen, stopping)
