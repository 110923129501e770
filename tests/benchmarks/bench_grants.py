"""How many grants a second does one service give over HTTP to 16 client processes, each grant durable?

Bar: 1,000 grants/s with synchronous=FULL. The rival in the same run is the same ledger, called in
process by one thread, where every grant pays for a sync of its own: group commit must beat it.

    python tests/benchmarks/bench_grants.py [--clients 16] [--requests 200]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.budget_service.harness import prepare, start
from tests.budget_service.load import run_clients, total_granted

from evertally.accountants.budget import ChargeRequest, GaussianLine
from evertally.accountants.budget.opening import open_ledger

BAR = 1000.0
SIGMA = "100000"
ROUNDS = 5


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used, all of its threads together."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def served(folder: Path, clients: int, requests: int) -> tuple[list[float], float]:
    """(grants a second over HTTP of every round, ascending; CPU seconds of the service a grant)."""
    location = str(folder / "served.db")
    service = start(location, "", prepare(location), workers=128)
    try:
        run_clients(service.address, service.tokens["owner"], 2, 20, SIGMA)  # warm
        used, rates, grants = cpu_s(service.process.pid), [], 0
        for _ in range(ROUNDS):
            started = time.perf_counter()
            outcomes = run_clients(service.address, service.tokens["owner"], clients, requests, SIGMA, 0.0)
            given, _ = total_granted(outcomes)
            assert given == clients * requests, "some requests were not granted"
            rates.append(given / (time.perf_counter() - started))
            grants += given
        used = cpu_s(service.process.pid) - used
    finally:
        service.kill()
    return sorted(rates), used / grants


def alone(folder: Path, seconds: float = 5.0) -> float:
    """Grants a second of one thread without HTTP and without a group."""
    location = str(folder / "alone.db")
    prepare(location)
    ledger = open_ledger(location)
    request = ChargeRequest("health", "event", "add-remove", GaussianLine("1", SIGMA))
    ledger.charge(request)
    started, grants = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        ledger.charge(request)
        grants += 1
    ledger.close()
    return grants / seconds


def main() -> None:
    """Print both rates, their ratio and the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        single, (rates, used) = alone(folder), served(folder, options.clients, options.requests)
    spread = f"(median of {ROUNDS}; {rates[0]:.0f} to {rates[-1]:.0f})"
    grouped = rates[ROUNDS // 2]
    print(f"in process, one sync a grant   {single:10.0f} grants/s")
    print(f"over HTTP, {options.clients:3d} client processes {grouped:9.0f} grants/s {spread}")
    print(f"ratio to the rival             {grouped / single:10.2f}")
    print(f"CPU of the service a grant     {used * 1e6:10.0f} us (one core: {1 / used:.0f} grants/s)")
    verdict = "met" if grouped >= BAR else "MISSED"
    print(f"bar of {BAR:.0f} grants/s          {grouped / BAR:13.2f} of it: {verdict}")


if __name__ == "__main__":
    main()
