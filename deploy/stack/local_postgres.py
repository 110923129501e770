"""A private PostgreSQL on loopback, made for one run and removed with its folder. Not for production."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

__all__ = ["LocalPostgres", "programs"]


def programs() -> Path | None:
    """Folder with initdb and pg_ctl: Debian keeps them off the path."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = shutil.which("initdb")
    if found is not None:
        folders.append(Path(found).resolve().parent)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


class LocalPostgres:
    """One server; `address(user)` is how to reach its database `ledger`."""

    def __init__(self, folder: Path, port: int) -> None:
        bin_folder = programs()
        if bin_folder is None:
            raise SystemExit("the stack needs PostgreSQL: initdb and pg_ctl were not found")
        self._bin = bin_folder
        self._data = folder / "postgres"
        self._port = port
        self._as_postgres: list[str] = []
        self._data.mkdir()
        if os.getuid() == 0:  # initdb refuses root
            account = pwd.getpwnam("postgres")
            os.chown(self._data, account.pw_uid, account.pw_gid)
            self._as_postgres = ["runuser", "-u", "postgres", "--"]

    def start(self) -> None:
        """Make the database and start the server; its superuser is `ledger`, for callers of this machine."""
        self._call("initdb", "-D", str(self._data), "-U", "ledger", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {self._port} -c unix_socket_directories=''"
        log = str(self._data / "log")
        self._call("pg_ctl", "-D", str(self._data), "-w", "-t", "120", "-l", log, "-o", options, "start")
        self._call("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "ledger", "ledger")

    def address(self, user: str = "ledger") -> str:
        """How to reach the database."""
        return f"postgresql://{user}@127.0.0.1:{self._port}/ledger"

    def run_script(self, path: Path) -> None:
        """Run a file of SQL as the superuser."""
        self._call(
            "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", self.address(), script=path.read_text("utf-8")
        )

    def close(self) -> None:
        """Stop the server, where it runs."""
        if (self._data / "postmaster.pid").exists():
            self._call("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def _call(self, program: str, *words: str, script: str = "") -> None:
        done = subprocess.run(
            [*self._as_postgres, str(self._bin / program), *words],
            cwd=self._data,
            input=script,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{program} failed: {done.stderr[-2000:]}")
