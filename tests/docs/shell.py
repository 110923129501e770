"""A page's commands in one bash, in a folder of their own, under the examples' noise source."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import ROOT

__all__ = ["Shell"]

_SENTINEL = "@@ done"


class Shell:
    """Runs commands one after the other; what they left in the background is stopped at the end."""

    def __init__(self, folder: Path, *, command_s: float = 240.0) -> None:
        self._command_s = command_s
        self._ran: Counter[str] = Counter()
        python = Path(sys.executable)
        environment = {
            **{name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "CI") if name in os.environ},
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent / "noise"),
            "EVERTALLY": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """(exit status, lines of standard output and error together)."""
        assert self._bash.stdin is not None
        repeat = self._ran[command]
        self._ran[command] += 1
        script = (
            f"export EVERTALLY_DOCS_REPEAT={repeat}; (exit ${{__status:-0}})\n{command}\n"
            f"__status=$?; printf '\\n{_SENTINEL} %s\\n' $__status\n"
        )
        self._bash.stdin.write(script.encode())
        self._bash.stdin.flush()
        text = self._read_until_done(command)
        output, _, status = text.rpartition(f"\n{_SENTINEL} ")
        return int(status), output.removesuffix("\n").split("\n") if output else []

    def _read_until_done(self, command: str) -> str:
        assert self._bash.stdout is not None
        data, deadline = b"", time.monotonic() + self._command_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._bash.stdout, selectors.EVENT_READ)
            while not (data.endswith(b"\n") and f"\n{_SENTINEL} ".encode() in data):
                assert waiting.select(max(deadline - time.monotonic(), 0)), (
                    f"no end after {self._command_s} s: {command}\n{data.decode()}"
                )
                chunk = os.read(self._bash.stdout.fileno(), 65536)
                assert chunk, f"the shell ended: {command}\n{data.decode()}"
                data += chunk
        return data.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._bash.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline and self._alive():
                time.sleep(0.05)
        for stream in (self._bash.stdin, self._bash.stdout):
            assert stream is not None
            stream.close()

    def _alive(self) -> bool:
        self._bash.poll()
        try:
            os.killpg(self._bash.pid, 0)
        except ProcessLookupError:
            return False
        return True
