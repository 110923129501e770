"""A real Apache Kafka on loopback, in KRaft mode, for the tests and the demo. Not for production.

Maven fetches the jars once into a folder outside the checkout, keyed by the broker's version. To try things:

    python -m evertally.pipelines.kafka.local_broker --topic visits --partitions 2

prints the broker's address and runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from evertally.errors import ServiceUnavailable
from evertally.pipelines.kafka.broker import Broker

__all__ = ["LocalCluster", "fetch_jars", "free_ports", "main", "missing_tool"]

_LOG_LIMIT: Final = 4000
_PORT_MIN: Final = 15_000
_PORT_TRIES: Final = 100
_PORT_MAX: Final = 32_000  # below what Linux (32768) and the standard (49152) give to outgoing connections
_START_S: Final = 180.0  # nine seconds on an idle machine


def missing_tool() -> str | None:
    """Why no broker can be started here, or None."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


def fetch_jars(pom: Path) -> Path:
    """Folder with the broker's jars; fetched by Maven where it is not there yet."""
    version = re.search(r"<kafka.version>([\d.]+)</kafka.version>", pom.read_text("utf-8"))
    if version is None:
        raise ServiceUnavailable(f"{pom} names no kafka.version")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evertally"
    folder = cache / f"kafka-{version[1]}"
    if (folder / ".complete").exists():
        return folder / "libs"
    building = cache / f".kafka-{version[1]}.{os.getpid()}"
    building.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [
                "mvn",
                "-B",
                "-q",
                "-f",
                str(pom),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={building / 'libs'}",
                "-DincludeScope=runtime",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not fetch the broker: {done.stdout[-_LOG_LIMIT:]}")
        (building / ".complete").touch()
        with contextlib.suppress(OSError):  # another process was faster: its folder is as good
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder / "libs"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, and that the system gives nobody who asks for any port.

    A program takes seconds to start and to listen on its port; one of the system's choice, those of all
    outgoing connections, could be somebody's by then. Raises ServiceUnavailable where nearly all are taken.
    """
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for _ in range(1 + count * _PORT_TRIES):
            if len(found) == count:
                return found
            opened = stack.enter_context(socket.socket())  # held, so that no port is found twice
            with contextlib.suppress(OSError):
                opened.bind(("127.0.0.1", _PORT_MIN + secrets.randbelow(_PORT_MAX - _PORT_MIN)))
                found.append(opened.getsockname()[1])
        raise ServiceUnavailable(f"fewer than {count} ports from {_PORT_MIN} to {_PORT_MAX} are free")


class LocalCluster:
    """One broker, or three with replicated topics; every process is stopped by `close`.

    Args:
        jars: folder from `fetch_jars`.
        folder: an empty folder for logs and configuration.
        nodes: 1 or 3.
        extra: further server properties; "{port}" in a value stands for a node's client port.
        scram: users and passwords for SCRAM-SHA-256.
        listener: security protocol of the client port.
    """

    def __init__(
        self,
        jars: Path,
        folder: Path,
        *,
        nodes: int = 1,
        extra: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
        listener: str = "PLAINTEXT",
    ) -> None:
        self._jars = jars
        self._folder = folder
        self._listener = listener
        self._extra = dict(extra or {})
        self._scram = dict(scram or {})
        # never a leading dash, which the storage tool would take for an option
        self._cluster_id = "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes)[1:22].decode()
        ports = free_ports(3 * nodes)
        self.ports: Final = ports[:nodes]
        self._controllers = ports[nodes : 2 * nodes]
        self._inter_broker = ports[2 * nodes :]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap_servers: Final = ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Format the storage and start every node; returns when all client ports answer."""
        for node in range(len(self.ports)):
            self._write_properties(node)
            users = [
                f"SCRAM-SHA-256=[name={user},password={password}]" for user, password in self._scram.items()
            ]
            self._java(
                "kafka.tools.StorageTool",
                "format",
                "-t",
                self._cluster_id,
                "-c",
                str(self._properties(node)),
                *(word for user in users for word in ("--add-scram", user)),
            )
        for node in range(len(self.ports)):
            self.start_node(node, wait=False)
        for node in range(len(self.ports)):
            self._wait(node)

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start one node (again)."""
        log = (self._folder / f"node-{node}.log").open("ab")
        # where it can be said, the kernel stops the broker when whoever started it is killed
        bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log:
            self._processes[node] = subprocess.Popen(
                [
                    *bound,
                    "java",
                    "-Xms64m",
                    "-Xmx256m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    f"{self._jars}/*",
                    "kafka.Kafka",
                    str(self._properties(node)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            self._wait(node)

    def kill_node(self, node: int) -> None:
        """kill -9."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Stop every node; nothing of it survives."""
        for node in tuple(self._processes):
            self.kill_node(node)

    def _wait(self, node: int) -> None:
        deadline = time.monotonic() + _START_S
        process = self._processes[node]
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1),
            ):
                return
            time.sleep(0.1)
        log = (self._folder / f"node-{node}.log").read_text("utf-8", "replace")
        raise ServiceUnavailable(f"the broker did not start: {log[-_LOG_LIMIT:]}")

    def _java(self, *words: str) -> None:
        command: Sequence[str] = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ServiceUnavailable(f"the broker's storage was not formatted: {done.stderr[-_LOG_LIMIT:]}")

    def _properties(self, node: int) -> Path:
        return self._folder / f"node-{node}.properties"

    def _write_properties(self, node: int) -> None:
        voters = ",".join(f"{n + 1}@127.0.0.1:{port}" for n, port in enumerate(self._controllers))
        copies = min(3, len(self.ports))
        client = f"CLIENT://127.0.0.1:{self.ports[node]}"
        inner = f"INNER://127.0.0.1:{self._inter_broker[node]}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node + 1),
            "controller.quorum.voters": voters,
            "listeners": f"{client},{inner},CONTROLLER://127.0.0.1:{self._controllers[node]}",
            "advertised.listeners": f"{client},{inner}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                f"CLIENT:{self._listener},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "INNER",
            "log.dirs": str(self._folder / f"node-{node}.logs"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "offsets.topic.replication.factor": str(copies),
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "transaction.state.log.num.partitions": "3",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(max(1, copies - 1)),
            **self._extra,
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self._properties(node).write_text(text, "utf-8")


def main() -> None:
    """Entry point of `python -m evertally.pipelines.kafka.local_broker`: one broker until a signal."""
    parser = argparse.ArgumentParser(
        description="A Kafka broker on loopback, to try things; nothing is kept."
    )
    parser.add_argument("--pom", type=Path, default=Path("deploy/kafka/pom.xml"), help="its Maven project")
    parser.add_argument("--topic", action="append", default=[], help="a topic to make; may be given again")
    parser.add_argument("--partitions", type=int, default=1, help="partitions of each topic")
    chosen = parser.parse_args()
    missing = missing_tool()
    if missing is not None:
        raise SystemExit(f"a broker cannot be started: {missing}")
    if not chosen.pom.is_file():
        raise SystemExit(f"a broker cannot be started: there is no {chosen.pom}")
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with (
        tempfile.TemporaryDirectory(prefix="evertally-broker-") as folder,
        LocalCluster(fetch_jars(chosen.pom), Path(folder)) as cluster,
    ):
        admin = Broker(cluster.bootstrap_servers).admin()
        topic = {
            "num_partitions": chosen.partitions,
            "replication_factor": 1,
            "configs": {"retention.ms": "-1"},
        }
        if chosen.topic:
            admin.create_topics(dict.fromkeys(chosen.topic, topic), wait_for_metadata=True)
        admin.close()
        print(cluster.bootstrap_servers, flush=True)  # noqa: T201 - a program's result
        stopping.wait()


if __name__ == "__main__":
    main()
