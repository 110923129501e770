"""Known vulnerabilities of what the locks pin: `python tests/audits/audit_locks.py`; part of `make security`.

pip-audit asks the package index's vulnerability service. Where there is none (a mirror, no network) it still
says that nothing was found: so one package is asked about first, and no answer is called just that.
Exits with 0 where nothing is known, 1 where something is, and 77 where nobody answered.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-train.lock",
    "requirements-flink.lock",
    "bootstrap.lock",
    "deploy/images/requirements-service.lock",
    "deploy/images/requirements-training.lock",
)
UNANSWERED = 77
_PROBE = "cryptography"


def pins(lock: Path) -> dict[str, str]:
    """Name to version of everything a lock pins."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ \\;]+)", lock.read_text(), re.MULTILINE))


def ask(requirements: Path) -> list[dict[str, Any]] | None:
    """pip-audit's answer about each package, None where it gave none."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner", "off"),
            *("--timeout", "20", "--format", "json", "--requirement", str(requirements)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answered: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return answered


def unanswered(found: list[dict[str, Any]] | None) -> bool:
    """Whether some package was passed over: that is no clean bill."""
    return found is None or any("skip_reason" in package for package in found)


def service_answers() -> bool:
    """Whether the vulnerability service knows one package that every lock pins."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text(f"{_PROBE}=={pins(ROOT / 'requirements.lock')[_PROBE]}\n")
        return not unanswered(ask(probe))


def main() -> int:
    """Ask about every lock."""
    if not service_answers():
        print("NOT AUDITED: this package index serves no vulnerability data; run where pypi.org answers")
        return UNANSWERED
    known = 0
    for lock in LOCKS:
        found = ask(ROOT / lock)
        if found is None or unanswered(found):
            print(f"{lock}: NOT AUDITED, some packages were not answered for")
            return UNANSWERED
        for package in found:
            for vulnerability in package["vulns"]:
                known += 1
                print(f"{lock}: {package['name']} {package['version']}: {vulnerability['id']}")
        print(f"{lock}: {len(found)} packages")
    return 1 if known else 0


if __name__ == "__main__":
    raise SystemExit(main())
