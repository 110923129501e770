"""`make stack`: everything compose.yaml starts, on loopback and without containers, until Ctrl-C.

Kafka, PostgreSQL, the budget service, a worker, the exporter, Prometheus and Alertmanager run as processes
of this machine over a temporary folder that is removed at the end. Grafana is not among them: import
deploy/grafana/dashboards/*.json into one of yours and point it at the printed Prometheus.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaAdminClient, KafkaProducer
from local_postgres import LocalPostgres
from settings import DEPLOY, PORTS, write_prometheus, write_token, write_worker

from evertally.pipelines.kafka.local_broker import LocalCluster, fetch_jars, free_ports, missing_tool

PARTITIONS = 2
READY_S = 180.0
TOOLS = ("prometheus", "prometheus-alertmanager")


class Stack:
    """All processes of one run."""

    def __init__(
        self, folder: Path, program: str, *, tick_s: int, clip: int, quick: bool, level: str
    ) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.servers = ""
        self._program = program
        self._options = {"tick_s": tick_s, "clip": clip}
        self._quick = quick
        self._level = level
        self._cleanup = contextlib.ExitStack()

    def start(self, say: Callable[[str], None]) -> None:
        """Start everything in order; returns when all of it answers."""
        postgres = LocalPostgres(self.folder, self.ports["postgres"])
        self._cleanup.callback(postgres.close)
        say("PostgreSQL and Kafka ...")
        postgres.start()
        broker_folder = self.folder / "kafka"
        broker_folder.mkdir()
        broker = LocalCluster(fetch_jars(DEPLOY / "kafka" / "pom.xml"), broker_folder)
        self.servers = self._cleanup.enter_context(broker).bootstrap_servers
        self._make_input()
        token = write_token(self.folder, "internal-token")
        config = write_worker(self.folder, self.ports, self.servers, postgres.address(), **self._options)
        chain = str(self.folder / "chain.key")
        port = {name: str(number) for name, number in self.ports.items()}
        say("budget service, worker and exporter ...")
        ledger = ("--ledger", postgres.address(), "--key-file", chain)
        self._begin("budget", self._program, "serve", *ledger, "--port", port["budget"])
        self._await("budget", "budget", "/readyz")
        self._once("topics", "create", "--config", str(config))
        logs = ("--log-format", "json", "--log-level", self._level)
        self._begin("worker", self._program, "worker", "--config", str(config), "--from", "earliest", *logs)
        self._await("worker", "health", "/readyz")
        postgres.run_script(DEPLOY / "postgres" / "exporter-role.sql")
        windows = [word for name in ("10s", "1m") for word in ("--window", name)]
        planes = (
            "--listen",
            f"127.0.0.1:{port['public']}",
            "--internal-listen",
            f"127.0.0.1:{port['internal']}",
        )
        reader = ("--ledger", postgres.address("evertally_exporter"))
        doors = ("--internal-token-file", str(token))
        self._begin("exporter", self._program, "exporter", *reader, *planes, *windows, *doors)
        self._await("exporter", "public", "/readyz")
        say("Alertmanager and Prometheus ...")
        self._begin(
            "alertmanager",
            "prometheus-alertmanager",
            f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port['alertmanager']}",
            "--cluster.listen-address=",
        )
        self._begin(
            "prometheus",
            "prometheus",
            f"--config.file={write_prometheus(self.folder, self.ports, token, quick=self._quick)}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port['prometheus']}",
        )
        self._await("alertmanager", "alertmanager", "/-/ready")
        self._await("prometheus", "prometheus", "/-/ready")

    def addresses(self) -> dict[str, str]:
        """Where everything stands."""
        names = ("budget", "public", "internal", "worker", "health", "prometheus", "alertmanager")
        found = {name: f"http://127.0.0.1:{self.ports[name]}" for name in names}
        database = f"postgresql://ledger@127.0.0.1:{self.ports['postgres']}/ledger"
        return {**found, "kafka": self.servers, "postgres": database}

    def close(self) -> None:
        """Stop everything, the last one started first."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._cleanup.close()

    def _begin(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _once(self, *words: str) -> None:
        done = subprocess.run(
            [self._program, *words], capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"evertally {' '.join(words)} failed: {done.stderr[-2000:]}")

    def _await(self, name: str, port: str, path: str) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.processes[name].poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        log = (self.folder / f"{name}.log").read_text("utf-8", "replace")
        raise SystemExit(f"{name} did not start:\n{log[-3000:]}")

    def _make_input(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        admin.create_topics(
            {"visits.raw": {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True
        )
        admin.close()


def feed(servers: str, stop: threading.Event, rate: float) -> None:
    """Send random visits until told to stop."""
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20)
    chance = random.Random()  # noqa: S311 - made-up events
    while not stop.wait(1.0 / rate):
        visit = {"k": chance.choice(("north", "north", "south", "east")), "v": chance.randrange(1, 6)}
        producer.send("visits.raw", json.dumps(visit).encode(), partition=chance.randrange(PARTITIONS))
    producer.close()


def main() -> None:
    """Start, print the addresses, wait for Ctrl-C, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = str(Path(sys.executable).with_name("evertally"))
    parser.add_argument("--program", default=default, help="the evertally to run")
    parser.add_argument("--tick-s", type=int, default=5, help="length of a tick, seconds")
    parser.add_argument("--clip", type=int, default=5, help="largest contribution of one event")
    parser.add_argument("--rate", type=float, default=20.0, help="made-up events a second; 0 for none")
    parser.add_argument("--quick", action="store_true", help="scrape every second, alert after seconds")
    parser.add_argument("--log-level", default="info", help="of the worker")
    parser.add_argument("--json", action="store_true", help="print addresses, processes and folder as JSON")
    chosen = parser.parse_args()
    absent = [missing_tool(), *(f"{tool} is not installed" for tool in TOOLS if shutil.which(tool) is None)]
    if any(absent):
        raise SystemExit("the stack needs more: " + ", ".join(why for why in absent if why))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="evertally-stack-") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - PostgreSQL runs as a user of its own below it
        stack = Stack(
            Path(folder),
            chosen.program,
            tick_s=chosen.tick_s,
            clip=chosen.clip,
            quick=chosen.quick,
            level=chosen.log_level,
        )
        feeder = None
        try:
            stack.start(lambda text: print(text, file=sys.stderr, flush=True))
            if chosen.rate > 0:
                feeder = threading.Thread(target=feed, args=(stack.servers, stop, chosen.rate))
                feeder.start()
            _tell(stack, as_json=chosen.json)
            stop.wait()
        finally:
            stop.set()
            print("stopping ...", file=sys.stderr, flush=True)
            if feeder is not None:
                feeder.join()
            stack.close()
    print("everything is stopped and removed", file=sys.stderr, flush=True)


def _tell(stack: Stack, *, as_json: bool) -> None:
    if as_json:
        pids = {name: process.pid for name, process in stack.processes.items()}
        found = {"addresses": stack.addresses(), "processes": pids, "folder": str(stack.folder)}
        print(json.dumps(found), flush=True)
        return
    for name, address in stack.addresses().items():
        print(f"{name:14} {address}")
    print(f"{'logs':14} {stack.folder}\nCtrl-C stops everything", flush=True)


if __name__ == "__main__":
    main()
