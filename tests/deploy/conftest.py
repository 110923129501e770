"""What deploy/ is tested against: an environment like the image's, and the whole stack on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.stack_client import RunningStack, require

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "deploy" / "images" / "requirements-service.lock"


@pytest.fixture(scope="session")
def image_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`evertally` in a clean environment, made by the steps of service.Dockerfile."""
    uv = ROOT / ".uv" / "bin" / "uv"
    if not uv.exists():
        require("uv")
        uv = Path("uv")
    folder = tmp_path_factory.mktemp("image") / "evertally"
    environment = {**os.environ, "VIRTUAL_ENV": str(folder)}
    for words in (
        ["venv", "--quiet", "--python", sys.executable, str(folder)],
        ["pip", "sync", "--quiet", "--require-hashes", str(LOCK)],
        ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", str(ROOT)],
    ):
        done = subprocess.run(
            [str(uv), *words], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder / "bin" / "evertally"


@pytest.fixture(scope="module")
def stack(image_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """deploy/stack/stack.py, as `make stack` starts it, with the image's program and short waits."""
    require("prometheus", "prometheus-alertmanager", "java", "mvn")
    said = tmp_path_factory.mktemp("stack") / "said"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "deploy" / "stack" / "stack.py"), "--program", str(image_program),
             "--json", "--quick", "--tick-s", "1", "--rate", "0", "--clip", "100000000",
             "--log-level", "debug"],
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, said.read_text()
        yield RunningStack(process, **json.loads(line))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            if process.poll() is None:
                process.kill()
        process.wait()
        process.stdout.close()
