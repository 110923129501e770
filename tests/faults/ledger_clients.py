"""Charging clients for load tests, to be killed: a server that forks a process of clients at each request.

A request is one line "LEDGER NUMBER CLIENTS REQUESTS OUTPUT KEYED"; the answer is the child's pid. The child
runs CLIENTS threads on one ledger; each charges keys NUMBER-client-i and repeats every tenth one. An answer
is one line "key charge_id main" appended to OUTPUT ("key - 0" for a refusal); keys in it are not asked again.
KEYED False is the control: no request carries its idempotency key.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from evertally.accountants.budget import ChargeRequest, GaussianLine, LedgerStore, open_ledger
from evertally.errors import BudgetExceeded


def client(
    store: LedgerStore, name: str, requests: int, answered: set[str], sink: int, *, keyed: bool
) -> None:
    """Ask for every key that has no answer yet; a tenth of them twice."""
    for i in range(requests):
        key = f"{name}-{i}"
        if key in answered:
            continue
        own = key if keyed else ""
        request = ChargeRequest("s", "event", "add-remove", GaussianLine(1, "80"), idempotency_key=own)
        for _ in range(2 if i % 10 == 0 else 1):
            try:
                receipt = store.charge(request)
                line = f"{key} {receipt.charge_id} {receipt.main}\n"
            except BudgetExceeded:
                line = f"{key} - 0\n"
            os.write(sink, line.encode())


def serve() -> None:
    """Fork a process of clients for each line of standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no zombie entry
    for line in sys.stdin:
        ledger, number, clients, requests, output, keyed = line.split()
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        path = Path(output)
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        sink = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        store = open_ledger(ledger, create=False)
        answered = {text.split()[0] for text in whole}
        threads = [
            threading.Thread(
                target=client,
                args=(store, f"{number}-{i}", int(requests), answered, sink),
                kwargs={"keyed": keyed == "True"},
            )
            for i in range(int(clients))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)


if __name__ == "__main__":
    serve()
