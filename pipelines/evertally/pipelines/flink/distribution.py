"""Where Flink is: the distribution inside PyFlink, and the Kafka connector, fetched once by Maven."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evertally.errors import IntegrityError, ServiceUnavailable

__all__ = ["CONNECTOR", "environment", "fetch_connector", "flink_home"]

CONNECTOR: Final = "flink-sql-connector-kafka-5.0.0-2.2.jar"
_ARTIFACT: Final = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
_SHA256: Final = "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616"
_LOG_LIMIT: Final = 4000


def flink_home(python: Path | None = None) -> Path:
    """Folder of the distribution: FLINK_HOME, else the one inside PyFlink.

    Args:
        python: an interpreter with PyFlink; None for this one.

    Raises ServiceUnavailable where there is none.
    """
    home = os.environ.get("FLINK_HOME")
    if home:
        return Path(home)
    if python is not None:
        found = sorted(python.parent.parent.glob("lib/python3*/site-packages/pyflink"))
    else:
        spec = importlib.util.find_spec("pyflink")
        found = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    if not found:
        raise ServiceUnavailable("PyFlink is not installed here; `make flink-venv` makes its environment")
    return found[0]


def environment(home: Path, conf: Path, logs: Path) -> dict[str, str]:
    """Environment of Flink's scripts; nothing of the distribution's own folders is written to."""
    return {
        **os.environ,
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(logs),
        "FLINK_PID_DIR": str(logs),
        "FLINK_LIB_DIR": str(home / "lib"),
        "FLINK_OPT_DIR": str(home / "opt"),
        "FLINK_PLUGINS_DIR": str(home / "plugins"),
        **_java_home(os.environ),
    }


def fetch_connector() -> Path:
    """The connector's jar, from the cache or by Maven; its hash is checked either way.

    Raises:
        ServiceUnavailable: Maven is not there, or could not fetch it.
        IntegrityError: another jar lies in its place.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evertally" / "flink"
    jar = cache / CONNECTOR
    if not jar.exists():
        _fetch(jar)
    if hashlib.sha256(jar.read_bytes()).hexdigest() != _SHA256:
        raise IntegrityError(f"{jar} is not the connector that was tested: its hash differs")
    return jar


def _fetch(jar: Path) -> None:
    if shutil.which("mvn") is None:
        raise ServiceUnavailable(f"mvn is not installed; put {CONNECTOR} into {jar.parent}")
    building = jar.parent / f".{os.getpid()}"
    building.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [
                "mvn",
                "-B",
                "-q",
                "dependency:copy",
                f"-Dartifact={_ARTIFACT}",
                f"-DoutputDirectory={building}",
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            cwd=building,
        )
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not fetch the connector: {done.stdout[-_LOG_LIMIT:]}")
        with contextlib.suppress(FileNotFoundError):
            (building / CONNECTOR).replace(jar)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _java_home(environment: Mapping[str, str]) -> dict[str, str]:
    java = shutil.which("java")
    if environment.get("JAVA_HOME") or java is None:
        return {}
    return {"JAVA_HOME": str(Path(java).resolve().parent.parent)}
