"""A PostgreSQL server of a test's own, to be stopped, killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

__all__ = ["Server", "running_server"]


class Server:
    """A private PostgreSQL server that can be stopped, killed and started again."""

    def __init__(self, programs: Path) -> None:
        self._control = str(programs / "pg_ctl")
        self._as_postgres: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="evertally-pgf-", dir="/tmp"))
        if os.getuid() == 0:  # initdb refuses root
            os.chown(self.folder, pwd.getpwnam("postgres").pw_uid, -1)
            self._as_postgres = ["runuser", "-u", "postgres", "--"]
        data = str(self.folder / "data")
        self._call(str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8")
        self.address = f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start, recovering from whatever happened."""
        options = f"-c listen_addresses='' -k {self.folder}"
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self._call(self._control, "-D", data, "-w", "-t", "110", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop; immediate is a crash: nothing is flushed, recovery runs at the next start."""
        self._call(self._control, "-D", str(self.folder / "data"), "-w", "-t", "110", "-m", mode, "stop")

    def freeze(self, seconds: float) -> None:
        """Let the ledger's clients wait: what serves them is stopped for so long."""
        with psycopg.connect(self.address, connect_timeout=20) as admin:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'evertally'"
            ).fetchall()
        for (pid,) in found:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for (pid,) in found:
            os.kill(pid, signal.SIGCONT)

    def kill_a_backend(self) -> bool:
        """SIGKILL to the process that serves the ledger's writer; the server restarts all the others."""
        try:
            with psycopg.connect(self.address, connect_timeout=5) as admin:
                found = admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'evertally'"
                    " ORDER BY state = 'active' DESC, xact_start DESC NULLS LAST LIMIT 1"
                ).fetchone()
        except psycopg.Error:
            return False
        if found is None:
            return False
        os.kill(found[0], signal.SIGKILL)
        return True

    def _call(self, *command: str) -> None:
        subprocess.run(
            [*self._as_postgres, *command],
            cwd=self.folder,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )


@contextmanager
def running_server() -> Iterator[Server]:
    """A server that runs, and is gone in the end."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
        Path(shutil.which("initdb") or "").parent
    ]
    started = Server(programs[-1])
    try:
        started.start()
        try:
            yield started
        finally:
            started.stop()
    finally:
        shutil.rmtree(started.folder)
