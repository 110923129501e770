"""What a service's log says of kafka-python's warnings, and what becomes of a log that cannot be written."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertally.pipelines.cli.output import LogFormat, begin
from evertally.pipelines.cli.worker import LogLevel, begin_service


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    kept = [
        (log, log.handlers[:], log.level, log.propagate)
        for log in map(logging.getLogger, ("evertally", "kafka"))
    ]
    yield
    for log, handlers, level, propagate in kept:
        log.handlers[:], log.level, log.propagate = handlers, level, propagate


@pytest.mark.parametrize("form", LogFormat)
def test_offsets_and_tracebacks_of_the_client_are_in_no_log(
    form: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    """An offset of the input is an exact number of events, in every sentence that the client has for it."""
    begin_service(as_json=False, log_format=form, level=LogLevel.INFO)
    log = logging.getLogger("kafka.consumer.fetcher")
    log.warning(
        "Truncation detected for %s at position %s (first diverging offset is %s)", "t", 271828, 271829
    )
    log.warning("Failed to produce messages to topic-partition %s with base offset %s: %s", "t", 271830, "x")
    log.warning("Got %s on topic-partition %s with %d records, splitting", "TooLarge", "t", 271831)
    log.warning("Out of order (log_start_offset=%s, last_acked_offset=%s), node %s", 271832, 271833, 7)
    try:
        raise ValueError("OffsetAndMetadata(offset=271834)")
    except ValueError:
        log.exception("Offset commit failed: {'t': OffsetAndMetadata(offset=271835, metadata='')}")
    logging.getLogger("evertally.x").info("releasing shard %d from tick %d at offset 5", 0, 12)
    said = capsys.readouterr().err
    assert "2718" not in said
    assert "Traceback" not in said
    assert "first diverging offset is N" in said
    assert "node 7" in said
    assert "from tick 12 at offset 5" in said, "what evertally says is left as it is"


def test_a_log_that_cannot_be_written_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Threads of a client still speak at the end, and a disk may be full: arguments were printed."""
    closed = (tmp_path / "log").open("w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", closed)
        log = begin(as_json=False, log_format=LogFormat.TEXT)
    closed.close()
    log.warning("nobody hears this: %s", 314159)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_nothing_is_written_once_all_is_said() -> None:
    """Threads of Beam and gRPC fail when a job that was stopped takes its runner away from them."""
    program = """
import atexit, logging, sys, threading
from evertally.pipelines.cli.output import LogFormat, begin, emit, said_all
log = begin(as_json=False, log_format=LogFormat.TEXT)
release = threading.Event()
def late():
    release.wait()
    print("Traceback of a bundle", file=sys.stderr)
    logging.getLogger("apache_beam").error("Traceback of a log")
    raise KeyError("inst022")
thread = threading.Thread(target=late)
thread.start()
atexit.register(lambda: logging.getLogger("x").error("Traceback at the end"))
log.info("the job ended")
emit({}, "CANCELLED")
said_all()
release.set()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "CANCELLED\n")
    assert done.stderr == "evertally: the job ended\n"
