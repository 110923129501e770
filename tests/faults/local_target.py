"""The local pipeline under faults: stream after stream, each killed and run again until it is whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

from tests.contracts.engine_conformance import exact_steps
from tests.faults.failing_files import STORAGE
from tests.faults.fault_schedule import Fault
from tests.faults.local_runs import Request
from tests.faults.raw_reading import FileReader, LedgerReader
from tests.faults.recorded_history import Asked, Counted, Declared, Instant, Operation, Sent

from evertally.accountants.budget.opening import open_ledger
from evertally.pipelines.config import load_config
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.local.runner import stream_exists
from evertally.pipelines.releases import read_releases
from evertally.pipelines.ticks import format_ms

__all__ = ["LocalTarget"]

START_MS, TICK_MS = 1_700_000_000_000, 60_000
KEYS = ("alpha", "beta", "gamma")
TICKS = 96
_STEPS = 60
_REFUSED = 4
_OPENED_BY_ANOTHER = (2, 3)
"""Exits of who meant to open a new stream: its name is taken, or the cap is spent on it."""
_AT_ITS_START = 1 / 4
"""Share of the kills that may hit a run before it releases anything."""
_DIES = 1 / 3
"""Share of the zombies that are killed just after they woke up."""


class LocalTarget:
    """Streams in folders of their own; a fault hits the one that is under way."""

    def __init__(self, folder: Path, seed: int, *, full: bool = True) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._full = full
        with (folder / "runs.log").open("w") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.local_runs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._number = 0
        self._stream: _LocalStream | None = None
        self.inflicted = self.whole = 0
        self.refused = Counter[str]()

    def close(self) -> None:
        """End the server; its children are all ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """A run with the fault in it, and what is there afterwards."""
        stream = self._stream
        if stream is None:
            self._number += 1
            stream = self._stream = _LocalStream(self._folder / f"s{self._number}", self._chance)
            yield from stream.begin()
        stream.shuffle(self._chance)
        if fault.kind == "kill":
            code = self._killed(stream, fault)
        elif fault.kind == "zombie":
            code = yield from self._stopped(stream, fault)
        elif fault.kind in STORAGE:
            code = self._wait(self._start(stream, fault.kind, fault.chance.randint(1, 3 * _STEPS)))
            self.refused[fault.kind] += code == _REFUSED
        else:
            code = self._wait(self._start(stream, fault.kind, fault.chance.randint(1, _STEPS)))
        assert code in (0, _REFUSED, -signal.SIGKILL), f"{fault.kind}: exit {code}\n{self._said()}"
        yield from stream.observe()
        self.inflicted += 1
        if code == 0:
            yield from self._end(stream)

    def finish(self) -> Iterator[Operation]:
        """Run what is under way to its end."""
        if self._stream is not None:
            assert self._wait(self._start(self._stream)) == 0, self._said()
            yield from self._end(self._stream)

    def _killed(self, stream: _LocalStream, fault: Fault) -> int:
        """SIGKILL from outside: at some moment of the start, or behind some publication."""
        pid = self._start(stream)
        if fault.chance.random() < _AT_ITS_START:
            time.sleep(fault.chance.uniform(0.0, 0.1))
        else:
            had = stream.published()
            while stream.published() == had and _state(pid) != "Z":
                time.sleep(0.001)
            time.sleep(fault.chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        return self._wait(pid)

    def _stopped(self, stream: _LocalStream, fault: Fault) -> Generator[Operation, None, int]:
        """SIGSTOP at some step; a successor ends, dies or stops too; then the zombie wakes, maybe dies."""
        chance = fault.chance
        zombie = self._start(stream, "stop", chance.randint(1, 3 * _STEPS))
        stopped = self._settled(zombie)
        begun = stream_exists(load_config(stream.config))
        yield from stream.observe()
        stream.shuffle(chance)
        kind = chance.choice(("", "crash", "stop"))
        successor = self._start(stream, kind, chance.randint(1, _STEPS))
        self._settled(successor)
        yield from stream.observe()
        if stopped:
            os.kill(zombie, signal.SIGCONT)
            if chance.random() < _DIES:
                time.sleep(chance.uniform(0.0, 0.01))
                os.kill(zombie, signal.SIGKILL)
        woken = self._wait(zombie)
        refused = (_REFUSED,) if begun else (_REFUSED, *_OPENED_BY_ANOTHER)
        assert woken in (0, *refused, -signal.SIGKILL), f"the zombie: exit {woken}\n{self._said()}"
        yield from stream.observe()
        if _state(successor) == "T":
            os.kill(successor, signal.SIGCONT)
        code = self._wait(successor)
        ends = {"crash": [-signal.SIGKILL], "": [0], "stop": [0]}[kind]
        if (
            kind == "stop" and woken not in refused
        ):  # a zombie stopped before it began takes over from a sleeper
            ends.append(_REFUSED)
        assert code in ends, f"the successor: exit {code}\n{self._said()}"
        return code

    def _said(self) -> str:
        """What the runs said of themselves, the last one at the end."""
        return (self._folder / "runs.log").read_text()[-2000:]

    @staticmethod
    def _settled(pid: int) -> bool:
        """Wait until a process has ended or stopped; whether it stopped."""
        while _state(pid) not in "TZ":
            time.sleep(0.002)
        return _state(pid) == "T"

    def _end(self, stream: _LocalStream) -> Iterator[Operation]:
        yield from stream.end()
        self.whole += 1
        self._stream = None

    def _start(self, stream: _LocalStream, kind: str = "", at: int = 0) -> int:
        return int(self._ask(json.dumps(Request(str(stream.config), kind, at, self._full)._asdict())))

    def _wait(self, pid: int) -> int:
        return int(self._ask(f"wait {pid}"))

    def _ask(self, line: str) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()


class _LocalStream:
    """One stream: its events, its files, its readers."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        folder.mkdir()
        self.name = folder.name
        self.config = folder / "run.toml"
        self._folder = folder
        self._events = [
            (chance.randrange(TICKS * TICK_MS), chance.choice(KEYS)) for _ in range(chance.randint(0, 300))
        ]
        self.config.write_text(
            f"""
[stream]
name = "{self.name}"
keys = {json.dumps(KEYS)}
start = "{format_ms(START_MS)}"
end = "{format_ms(START_MS + TICKS * TICK_MS)}"
tick_s = {TICK_MS // 1000}
[source]
path = "events.jsonl"
timestamp = "at"
key = "k"
[privacy]
epsilon = 1.0
delta = 1e-6
[output]
releases = "releases.jsonl"
[state]
path = "ledger"
key_file = "key"
"""
        )
        self._file = FileReader(folder / "releases.jsonl", self.name)
        self._ledger = LedgerReader(str(folder / "ledger"))

    def begin(self) -> Iterator[Operation]:
        """What is asked of it."""
        yield Declared(self.name, KEYS)
        yield Asked(f"open {self.name}")
        for key, amount in Counter(key for _, key in self._events).items():
            yield Sent(self.name, key, amount)

    def shuffle(self, chance: random.Random) -> None:
        """The same events in another order: every run is delivered all of them again."""
        chance.shuffle(self._events)
        lines = [json.dumps({"at": START_MS + at, "k": key}) + "\n" for at, key in self._events]
        (self._folder / "events.jsonl").write_text("".join(lines) or "\n")

    def published(self) -> int:
        """Size of the releases file."""
        path = self._folder / "releases.jsonl"
        return path.stat().st_size if path.exists() else 0

    def observe(self) -> Iterator[Operation]:
        """Readers' file first, then the ledger."""
        yield from self._file.read()
        yield from self._ledger.read()
        yield Instant()

    def end(self) -> Iterator[Operation]:
        """Everything from the start, and the exact totals behind it."""
        yield from self._file.reread()
        yield from self._ledger.reread(self.name)
        config = load_config(self.config)
        store = open_ledger(config.state)
        opened = store.find_stream(self.name)
        assert opened is not None
        assert store.verify().problems == ()
        store.close()
        _, releases = read_releases(config.releases)
        for key, steps in exact_steps(releases, config.spec, opened, KeyFile.open(config.key_file)).items():
            assert min(steps) >= 0
            assert len(steps) == TICKS
            yield Counted(self.name, key, sum(steps))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
