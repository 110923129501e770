"""Clients that are killed in flight: what is spent is the sum of the distinct grants, at every instant."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.fault_schedule import Fault, faults, inflict, the_seed
from tests.faults.raw_reading import LedgerReader
from tests.faults.recorded_history import Answered, Asked, Operation, anomalies

from evertally.accountants.budget import Scope, open_ledger

pytestmark = [pytest.mark.faults, pytest.mark.slow]
CHARGE = 156_250  # (1/80)^2 in nano-mu2


class ClientsTarget:
    """Processes of clients on one ledger; a kill ends all clients of one in the middle of their requests.

    A successor asks again for whatever has no answer.
    """

    def __init__(
        self, folder: Path, processes: int, clients: int, requests: int, epsilon: str, *, keyed: bool = True
    ) -> None:
        self._folder, self._processes, self._keyed = folder, processes, keyed
        self._clients, self._requests = clients, requests
        self._path = folder / "ledger.sqlite"
        self._store = open_ledger(self._path)
        self._store.create_scope(Scope("s", "event", "add-remove", epsilon, "1e-6"))
        self._ledger = LedgerReader(str(self._path))
        self._sizes = dict.fromkeys(range(processes), 0)
        self._answered: set[str] = set()
        self._pids: dict[int, int] = {}
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ledger_clients.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End everything."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()
        self._store.close()

    def inflict(self, fault: Fault) -> Iterator[Operation]:
        """SIGKILL to one of the processes that are at work."""
        assert fault.kind == "kill"
        yield from self._go_on()
        time.sleep(fault.chance.uniform(0.02, 0.1))
        yield from self._observe()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids[fault.chance.randrange(self._processes)], signal.SIGKILL)

    def finish(self) -> Iterator[Operation]:
        """Until every request has its answer."""
        while len(self._answered) < self._processes * self._clients * self._requests:
            yield from self._go_on()
            time.sleep(0.05)
            yield from self._observe()
        assert self._store.verify().problems == ()

    def _go_on(self) -> Iterator[Operation]:
        """Start what has ended before its time; at first everything, and say what is asked."""
        for number in range(self._processes):
            if number not in self._pids:
                names = [f"{number}-{client}" for client in range(self._clients)]
                yield from (Asked(f"{name}-{i}") for name in names for i in range(self._requests))
            elif _runs(self._pids[number]):
                continue
            output = self._folder / f"out{number}"
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            words = f"{self._path} {number} {self._clients} {self._requests} {output} {self._keyed}"
            self._server.stdin.write(words + "\n")
            self._server.stdin.flush()
            self._pids[number] = int(self._server.stdout.readline())

    def _observe(self) -> Iterator[Operation]:
        """What clients were told by now, then what the ledger says."""
        for number in range(self._processes):
            output = self._folder / f"out{number}"
            if not output.exists():
                continue
            with output.open("rb") as file:
                file.seek(self._sizes[number])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._sizes[number] += len(whole)
            for line in whole.decode().splitlines():
                key, charge, main = line.split()
                self._answered.add(key)
                yield Answered(key, "" if charge == "-" else charge, int(main))
        yield from self._ledger.read()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def load(
    folder: Path, processes: int, clients: int, requests: int, epsilon: str, seed: int
) -> tuple[int, int]:
    """(grants, refusals) of processes x clients; a hundredth of the requests die in flight."""
    target = ClientsTarget(folder, processes, clients, requests, epsilon)
    try:
        history = inflict(target, {"kill": max(1, processes * requests // 100)}, seed)
    finally:
        target.close()
    answers = {found.request: found for found in history if isinstance(found, Answered)}.values()
    grants = [found for found in answers if found.charge]
    assert {found.amount for found in grants} == {CHARGE}
    return len(grants), len(answers) - len(grants)


def test_sixteen_clients_of_four_hundred_requests_some_killed(tmp_path: Path) -> None:
    grants, refused = load(tmp_path, 4, 4, 400, "4", the_seed(16))
    assert grants > 4000
    assert refused > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_sixty_four_clients_of_ten_thousand_requests_some_killed(tmp_path: Path) -> None:
    assert load(tmp_path, 8, 8, 10_000, "800", the_seed())[0] == 640_000


def test_a_retry_would_be_charged_twice_without_its_key(tmp_path: Path) -> None:
    """The control: a request without an idempotency key is another one each time it is sent."""
    target = ClientsTarget(tmp_path, 1, 2, 20, "4", keyed=False)
    history: list[Operation] = []
    try:
        for fault in faults(1, {"kill": 1}):
            history += target.inflict(fault)
        history += target.finish()
    finally:
        target.close()
    found = anomalies(history)
    assert any("has two answers" in text for text in found)
