"""Makes the secrets of compose.yaml: `python make_secrets.py FOLDER`, with evertally installed.

FOLDER/secrets and FOLDER/prometheus-secrets must not exist yet: nothing is ever replaced, because a lost key
ends a stream. The files belong to the image's user (65532) where this runs as root; else give them to it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from evertally.pipelines.keyfile import KeyFile

IMAGE_USER = 65532
PROMETHEUS_USER = 65534
POSTGRES_USER = 999
GRAFANA_USER = 472


def write(path: Path, content: bytes, owner: int) -> None:
    """A new file for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    give(path, owner)


def give(path: Path, owner: int) -> None:
    """Make a file its owner's, where we may."""
    if os.getuid() == 0:
        os.chown(path, owner, owner)


def main(folder: Path) -> None:
    """Make everything once."""
    own, scraping = folder / "secrets", folder / "prometheus-secrets"
    own.mkdir(mode=0o755)
    scraping.mkdir(mode=0o755)
    owner_password, reader_password, token = (secrets.token_urlsafe(24) for _ in range(3))
    for name, text, owner in (
        ("postgres-password", owner_password, POSTGRES_USER),
        ("exporter-password", reader_password, POSTGRES_USER),
        ("pgpass", f"postgres:5432:ledger:ledger:{owner_password}\n", IMAGE_USER),
        ("pgpass-exporter", f"postgres:5432:ledger:evertally_exporter:{reader_password}\n", IMAGE_USER),
        ("internal-token", token + "\n", IMAGE_USER),
        ("grafana-password", secrets.token_urlsafe(24), GRAFANA_USER),
    ):
        write(own / name, text.encode(), owner)
    write(own / "chain.key", os.urandom(32), IMAGE_USER)
    KeyFile.create(own / "visits.key")
    give(own / "visits.key", IMAGE_USER)
    write(scraping / "internal-token", (token + "\n").encode(), PROMETHEUS_USER)
    # replaced by a token of `evertally token create --grant 'service:*=operate'` once the service runs
    write(scraping / "budget-token", b"not-made-yet-see-README\n", PROMETHEUS_USER)
    print(f"secrets are in {own} and {scraping}; keep a copy of chain.key and visits.key apart from the host")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
