"""deploy/beam: the runbook's commands run as they stand; the wheel works where the checkout is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_harness import KEYS, KafkaStream, wait_until
from tests.beam.prism_streams import Job, head

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = ROOT / "deploy" / "beam" / "README.md"


def commands() -> list[str]:
    """The shell blocks of the runbook, in order."""
    return re.findall(r"```sh\n(.*?)```", RUNBOOK.read_text(), re.DOTALL)


@pytest.mark.prism
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_runbook_runs_as_it_stands(prism: Path, servers: str, tmp_path: Path) -> None:
    """Its first start, a kill, its later start: ticks go on."""
    first, later = commands()
    wanted = dict.fromkeys(KEYS, 5)
    stream = KafkaStream(servers, tmp_path, tick_s=1.0)
    stream.send({"k": key} for key in stream.keys for _ in range(5))
    here = {
        "CONFIG": str(stream.config()),
        "OPTIONS": str(ROOT / "deploy" / "beam" / "prism.options"),
        "PRISM": str(prism),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for block in (first, later):
        had = head(stream)
        job = Job(["env", *(f"{k}={v}" for k, v in here.items()), "bash", "-ec", block], tmp_path / "job.log")
        try:
            wait_until("a release", _going_on(job, stream, had), 240, 0.5)
            if block is later:
                stream.wait_totals(wanted, timeout_s=120)
        finally:
            job.kill()
    stream.judge()


def _going_on(job: Job, stream: KafkaStream, had: int) -> Callable[[], bool]:
    return lambda: job.running() and head(stream) > had + 2


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the built wheel in it, and not the checkout; its other packages are ours."""
    folder = tmp_path_factory.mktemp("elsewhere")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "ours.pth").write_text(ours + "\n")  # its own .pth files, the editable install's, are not read
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=180)
    return folder


SCRIPT = """
import sys
import apache_beam as beam
import evertally.pipelines.beam
from evertally.accountants.budget.scopes import Scope
from evertally.pipelines.beam import ContinualCount, FileSinkRef, KeyRef, LedgerRef
from evertally.pipelines.keyfile import KeyFile
from evertally.pipelines.stream_spec import StreamSpec
from pathlib import Path

if __name__ == "__main__":
    folder, *options = sys.argv[1:]
    print(evertally.pipelines.beam.__file__)
    KeyFile.open_or_create(Path(folder, "key"))
    spec = StreamSpec("s", ("a", "b"), 0, 1000, Scope("s", "event", "add-remove", "1", "1e-6"))
    with beam.Pipeline(argv=["--runner=FnApiRunner", *options]) as p:
        events = p | beam.Create([{"key": "a", "at": str(n % 3000)} for n in range(30)])
        events | ContinualCount(
            spec, LedgerRef(f"{folder}/ledger"), KeyRef(f"{folder}/key"), time_field="at", ticks=3,
            sink=FileSinkRef(f"{folder}/out"),
        )
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["script", "module"])
def test_the_wheel_runs_in_another_environment(how: str, elsewhere: Path, tmp_path: Path) -> None:
    """apache/beam#34903: steps are found by import, whether the job is a script or a module."""
    (tmp_path / "counting_job.py").write_text(SCRIPT)
    (wheel,) = elsewhere.glob("*.whl")
    python = str(elsewhere / "venv" / "bin" / "python")
    words = [str(tmp_path / "counting_job.py")] if how == "script" else ["-m", "counting_job"]
    command = [python, *words, str(tmp_path), f"--extra_package={wheel}"]
    command += ["--environment_type=SUBPROCESS_SDK"] if how == "script" else []
    if how == "script":  # the steps run in a process of their own, which unpickles them
        command.append(f"--environment_config={python} -m apache_beam.runners.worker.sdk_worker_main")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(elsewhere) in done.stdout
    assert len((tmp_path / "out").read_text().splitlines()) == 1 + 3 * 2
