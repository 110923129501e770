"""The files of one run of the stack: the shipped ones, with this run's addresses in them."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from pathlib import Path

__all__ = ["PORTS", "write_prometheus", "write_token", "write_worker"]

PORTS = ("budget", "health", "worker", "public", "internal", "prometheus", "alertmanager", "postgres")
DEPLOY = Path(__file__).resolve().parents[1]

_WORKER = """
[stream]
name = "visits"
keys = ["north", "south", "other"]
other = "other"
start = "{start}"
tick_s = {tick_s}

[source]
key = "k"
value = "v"

[privacy]
clip = {clip}
epsilon = 1.0
delta = 1e-6

[budget]
scope = "city"
epsilon_cap = 4.0

[state]
path = "{ledger}"
chain_key_file = "chain.key"
key_file = "visits.key"

[kafka]
bootstrap_servers = "{servers}"
topic = "visits.raw"
prefix = "visits"
instance = "stack"
commit_s = 0.5

[health]
listen = "127.0.0.1:{health}"

[metrics]
listen = "127.0.0.1:{metrics}"
token_file = "internal-token"
"""


def write_token(folder: Path, name: str) -> Path:
    """A fresh bearer token."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(secrets.token_urlsafe(24) + "\n", "utf-8")
    return path


def write_worker(
    folder: Path, ports: dict[str, int], servers: str, ledger: str, *, tick_s: int, clip: int
) -> Path:
    """The stream's declaration."""
    now = int(time.time()) // tick_s * tick_s
    path = folder / "worker.toml"
    path.write_text(
        _WORKER.format(
            start=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            tick_s=tick_s,
            clip=clip,
            ledger=ledger,
            servers=servers,
            health=ports["health"],
            metrics=ports["worker"],
        ),
        "utf-8",
    )
    return path


def write_prometheus(folder: Path, ports: dict[str, int], token: Path, *, quick: bool) -> Path:
    """Prometheus' shipped configuration with this run's targets; `quick` shortens its waits."""
    target = folder / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", target)
    (target / "secrets").mkdir()
    for name in ("internal-token", "budget-token"):
        shutil.copy(token, target / "secrets" / name)
    jobs = {
        "public": ["public"],
        "internal": ["internal", "worker"],
        "budget": ["budget"],
        "alertmanager": ["alertmanager"],
    }
    for job, names in jobs.items():
        found = [{"targets": [f"127.0.0.1:{ports[name]}" for name in names]}]
        (target / "targets" / f"{job}.yml").write_text(json.dumps(found), "utf-8")  # JSON is YAML
    config = target / "prometheus.yml"
    every = "1s" if quick else "5s"
    config.write_text(config.read_text("utf-8").replace("15s", every), "utf-8")
    if quick:
        for path in (target / "rules").glob("*.yml"):
            rules = re.sub(r"for: \d+m", "for: 1s", path.read_text("utf-8")).replace(", 600)", ", 10)")
            path.write_text(rules, "utf-8")
    return config
