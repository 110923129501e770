"""A Flink cluster on loopback, for the tests, the benchmarks and first steps. Not for production.

Every process is stopped by `close`; nothing is written but into the cluster's own folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from evertally.errors import ServiceUnavailable
from evertally.pipelines.flink.distribution import environment, flink_home
from evertally.pipelines.flink.rest import FlinkRest
from evertally.pipelines.kafka.local_broker import free_ports

__all__ = ["LocalFlink"]

_START_S: Final = 240
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java process that does little compiles little."""
_LOG_LIMIT: Final = 4000


class LocalFlink:
    """A JobManager and TaskManagers.

    Args:
        folder: an empty folder for configuration, logs, checkpoints and savepoints.
        python: the interpreter of the environment with PyFlink.
        task_managers: how many to start.
        slots: of each TaskManager.
        extra: further settings of Flink.
    """

    def __init__(
        self,
        folder: Path,
        python: Path,
        *,
        task_managers: int = 2,
        slots: int = 1,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._folder: Final = folder
        self._python: Final = python
        self._count: Final = task_managers
        self._home: Final = flink_home(python)
        self.conf: Final = folder / "conf"
        self.checkpoints: Final = folder / "checkpoints"
        self.savepoints: Final = folder / "savepoints"
        rpc, rest, blob = free_ports(3)
        self.jobmanager: Final = f"127.0.0.1:{rest}"
        self.rest: Final = FlinkRest(self.jobmanager)
        self._settings: Final = {
            **_java_options(self._home),
            "env.java.opts.client": _SHORT_LIVED,
            "env.java.opts.jobmanager": _SHORT_LIVED,
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(rpc),
            "jobmanager.bind-host": "127.0.0.1",
            "jobmanager.memory.process.size": "1024m",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(rest),
            "blob.server.port": str(blob),
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": str(slots),
            "taskmanager.memory.process.size": "1400m",
            "io.tmp.dirs": str(folder / "tmp"),
            "state.backend.type": "hashmap",
            "execution.checkpointing.dir": self.checkpoints.as_uri(),
            "execution.checkpointing.savepoint-dir": self.savepoints.as_uri(),
            # without end: on a busy machine new TaskManagers may take longer than any number of attempts
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "500 ms",
            "restart-strategy.exponential-delay.max-backoff": "3 s",
            "heartbeat.interval": "1000",
            "heartbeat.timeout": "15000",
            "python.executable": str(python),
            "python.client.executable": str(python),
            **(extra or {}),
        }
        self._job_manager: subprocess.Popen[bytes] | None = None
        self._task_managers: dict[int, subprocess.Popen[bytes]] = {}
        self._groups: set[int] = set()
        self._next = 0

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
        """Start all processes side by side; returns when every TaskManager is registered."""
        self._configure()
        self.start_job_manager(wait=False)
        for _ in range(self._count):
            self.start_task_manager(wait=False)
        self.wait(self._count)

    def start_job_manager(self, *, wait: bool = True) -> None:
        """Start the JobManager (again, at the same ports)."""
        self._job_manager = self._spawn("jobmanager", 0)
        if wait:
            self.wait(len(self._task_managers))

    def start_task_manager(self, *, wait: bool = True) -> int:
        """Start one more TaskManager; returns its number."""
        number, self._next = self._next, self._next + 1
        self._task_managers[number] = self._spawn("taskmanager", number)
        if wait:
            self.wait(len(self._task_managers))
        return number

    @property
    def task_managers(self) -> list[int]:
        """Numbers of the TaskManagers that were started and not killed."""
        return sorted(self._task_managers)

    def pid(self, number: int) -> int:
        """Process id of a TaskManager."""
        return self._task_managers[number].pid

    def kill_task_manager(self, number: int) -> None:
        """kill -9."""
        process = self._task_managers.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_job_manager(self) -> None:
        """kill -9."""
        assert self._job_manager is not None
        self._job_manager.send_signal(signal.SIGKILL)
        self._job_manager.wait()

    def wait(self, task_managers: int) -> None:
        """Wait until so many TaskManagers are registered and alive."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ServiceUnavailable):
                if len(self.rest.task_managers()) >= task_managers:
                    return
            time.sleep(0.2)
        raise ServiceUnavailable(f"the cluster did not start: {self.logs()[-_LOG_LIMIT:]}")

    def logs(self) -> str:
        """What its processes have logged."""
        return "\n".join(
            file.read_text("utf-8", "replace") for file in sorted(self._folder.glob("logs/*.log"))
        )

    def close(self) -> None:
        """Stop every process, the workers' Python processes too."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in (self._job_manager, *self._task_managers.values()):
            if process is not None:
                process.wait()
        self._task_managers.clear()

    def _configure(self) -> None:
        for name in ("logs", "tmp"):
            (self._folder / name).mkdir(parents=True)
        shutil.copytree(self._home / "conf", self.conf)
        text = "".join(f"{key}: {value}\n" for key, value in self._settings.items())
        (self.conf / "config.yaml").write_text(text, "utf-8")

    def _spawn(self, kind: str, number: int) -> subprocess.Popen[bytes]:
        logs = self._folder / "logs"
        # where it can be said, the kernel stops the process when whoever started it is killed
        bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        script = str(self._home / "bin" / f"{kind}.sh")
        with (logs / f"{kind}-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [*bound, "bash", script, "start-foreground"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment(self._home, self.conf, logs), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._groups.add(process.pid)
        return process


def _java_options(home: Path) -> dict[str, str]:
    """The modules that Flink opens, as its own configuration lists them."""
    shipped = (home / "conf" / "config.yaml").read_text("utf-8")
    options = re.search(r"^\s+all: (--add-exports.*)$", shipped, re.MULTILINE)
    if options is None:
        raise ServiceUnavailable(f"{home} holds no distribution of Flink that this program knows")
    return {"env.java.opts.all": options[1]}
