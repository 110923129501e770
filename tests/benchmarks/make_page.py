"""Run the benchmarks one after the other and write docs/benchmarks.md: what was measured, where, when.

python tests/benchmarks/make_page.py [--only NAME ...] [--timeout 600]

A page is evidence of one machine on one day; the ratios travel better than the seconds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPTS: dict[str, tuple[str, ...]] = {
    "bench_rational.py": (),
    "bench_coefficients.py": (),
    "bench_fft_refill.py": (),
    "bench_step_latency.py": (),
    "certify_quantile.py": ("--points", "1000000"),
    "bench_ingest.py": (),
    "bench_demo.py": (),
    "bench_renyi.py": (),
    "bench_calibrate.py": (),
    "ledger_speed.py": (),
    "bench_grants.py": (),
    "bench_kafka_worker.py": (),
    "bench_beam_prism.py": (),
    "bench_exporter.py": (),
}


def processor() -> str:
    """The processor's model name, from the kernel where it tells."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def run(script: str, arguments: tuple[str, ...], timeout_s: int) -> str:
    """The script's output, or why there is none."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "benchmarks" / script), *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {timeout_s} s"
    return done.stdout.rstrip() if done.returncode == 0 else f"{done.stdout}{done.stderr}".rstrip()


def section(script: str, arguments: tuple[str, ...], timeout_s: int) -> str:
    """One script's part of the page, between markers that a later run replaces."""
    title = " ".join(("python", f"tests/benchmarks/{script}", *arguments))
    load = f"Load average of the machine before it: {os.getloadavg()[0]:.1f}."
    body = run(script, arguments, timeout_s)
    return f"<!-- begin {script} -->\n## `{title}`\n\n{load}\n\n```\n{body}\n```\n<!-- end {script} -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS), choices=list(SCRIPTS))
    parser.add_argument("--timeout", type=int, default=600, help="seconds a script may take")
    arguments = parser.parse_args()
    old = PAGE.read_text() if PAGE.exists() else ""
    parts = []
    for script, options in SCRIPTS.items():
        begin, end = f"<!-- begin {script} -->", f"<!-- end {script} -->"
        if script in arguments.only:
            print(script, flush=True)
            parts.append(section(script, options, arguments.timeout))
        elif begin in old:
            parts.append(begin + old.partition(begin)[2].partition(end)[0] + end)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = (
        "# Benchmarks\n\nWritten by `tests/benchmarks/make_page.py`; nothing here is typed by hand. "
        f"Last run {today} on {os.cpu_count()} cores of {processor()}, Python {platform.python_version()}. "
        "Questions and bars: `tests/benchmarks/README.md`.\n\n"
    )
    PAGE.write_text(head + "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
