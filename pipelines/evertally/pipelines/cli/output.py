"""What commands print: results on standard output, logs and errors on standard error.

Exact counts, noise and keys never come here: commands print what is public, and positions of refused
lines go to the dead-letter file alone.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import logging
import os
import signal
import sys
from typing import Annotated, Any, Final, TextIO

import typer

from evertally.errors import EvertallyError, InvalidParameter, StorageFull

__all__ = [
    "AsJson",
    "Logs",
    "LogFormat",
    "begin",
    "counted",
    "emit",
    "hold_standard_files",
    "report_error",
    "said_all",
]

_BROKEN_PIPE: Final = 128 + signal.SIGPIPE
_LOGGER: Final = logging.getLogger("evertally")


class LogFormat(enum.StrEnum):
    """How logs and errors are written to standard error."""

    TEXT = "text"
    JSON = "json"


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Logs = Annotated[LogFormat, typer.Option("--log-format", help="Form of logs and errors on standard error.")]


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # who says it: evertally, or kafka for its client's warnings
        return f"{record.name.partition('.')[0]}: {super().format(record)}"


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"level": record.levelname.lower(), "message": record.getMessage()}
        return json.dumps({**fields, **getattr(record, "fields", {})})


class _Quiet(logging.StreamHandler[TextIO]):
    """What cannot be written, on a full disk or at the end of the process, is lost without a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Settings:
    as_json = False
    log_format = LogFormat.TEXT


def begin(*, as_json: bool, log_format: LogFormat) -> logging.Logger:
    """Set how this command prints, and return its logger."""
    _Settings.as_json, _Settings.log_format = as_json, log_format
    handler = _Quiet(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format is LogFormat.JSON else _TextLines())
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may be no text; what was done is said all the same
        sys.stdout.reconfigure(errors="backslashreplace")
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    return _LOGGER


def emit(fields: dict[str, Any] | list[Any], text: str) -> None:
    """Print a command's result: its fields as JSON, or its text.

    Where its reader went away, which is its right, the command ends with 141 as other programs do.

    Raises:
        StorageFull: standard output cannot be written; what the command did is done all the same.
    """
    if sys.stdout is None:
        raise StorageFull("the result could not be written to standard output (it is closed)")
    try:
        print(json.dumps(fields) if _Settings.as_json else text, flush=True)
    except OSError as error:
        _give_up_stdout()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(_BROKEN_PIPE) from None
        raise StorageFull(f"the result could not be written to standard output ({error.strerror})") from None


def hold_standard_files() -> None:
    """Open what is closed of descriptors 0, 1 and 2 on nothing.

    Else the next file that is opened gets the number, and what is said on standard error goes into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


def said_all() -> None:
    """The command is done: what libraries still write while their threads end is nobody's error."""
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(OSError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 key", "2 keys"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def report_error(error: EvertallyError) -> None:
    """Say on standard error what went wrong; with --json also as an object on standard output."""
    mistakes = getattr(error, "mistakes", (error,) if isinstance(error, InvalidParameter) else ())
    fields: dict[str, Any] = {
        "error": type(error).__name__,
        "exit_code": error.exit_code,
        "mistakes": [{"field": m.field, "got": str(m.got), "expected": m.expected} for m in mistakes],
    }
    line = f"evertally: {error}"
    if _Settings.log_format is LogFormat.JSON:
        line = json.dumps({"level": "error", "message": str(error), **fields})
    with contextlib.suppress(OSError):  # nobody hears it, and the exit code says it all the same
        print(line, file=sys.stderr, flush=True)
    if _Settings.as_json:
        try:
            print(json.dumps({"ok": False, **fields, "message": str(error)}), flush=True)
        except OSError:
            _give_up_stdout()


def _give_up_stdout() -> None:
    """What could not be written is not tried again by the interpreter at its end."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
