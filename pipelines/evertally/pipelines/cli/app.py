"""The root of the command line: which commands there are, and what an error becomes.

Commands are imported only when they are called, so that `evertally --help` starts fast.
"""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from evertally.errors import EvertallyError, InvalidParameter, StorageFull
from evertally.pipelines.cli.examples import show_examples
from evertally.pipelines.cli.output import emit, hold_standard_files, report_error

__all__ = ["main"]


class _Entry(NamedTuple):
    module: str
    attribute: str
    summary: str


_COMMANDS: Final = {
    "demo": _Entry(
        "demo", "demo", "A year of New York departures, counted privately, with a table and a picture."
    ),
    "run": _Entry("run", "run", "Run a stream from a CSV or JSON-lines file, as a TOML file declares it."),
    "check-config": _Entry("check_config", "check_config", "Explain every mistake in a configuration."),
    "plot": _Entry("plot", "plot", "Draw a releases file: totals with error bands, and the standard error."),
    "worker": _Entry("worker", "worker", "Count a Kafka topic and release noisy totals, exactly once."),
    "release": _Entry("release", "release", "Release the closings that another engine writes to Kafka."),
    "beam": _Entry("beam_command", "beam", "Count a Kafka topic with an Apache Beam job."),
    "flink": _Entry(
        "flink_command", "app", "Count a Kafka topic on a Flink cluster: submit, watch, stop its job."
    ),
    "topics": _Entry("topics", "app", "Create and check the Kafka topics of a stream."),
    "train": _Entry("train_command", "train", "Train a model under one lease: DP-KFC or DP-SGD."),
    "account": _Entry(
        "account", "account", "Epsilon or delta of a matrix mechanism, from every valid bound."
    ),
    "calibrate": _Entry("calibrate", "calibrate", "The least noise that meets an epsilon and delta."),
    "compare": _Entry("compare", "compare", "Compare mechanisms at equal privacy."),
    "exporter": _Entry("exporter_command", "exporter", "Show released totals to Prometheus and to people."),
    "serve": _Entry("serve", "serve", "Serve the budget over HTTP."),
    "token": _Entry("token", "app", "Create, list and revoke access tokens of the budget service."),
    "ledger": _Entry("ledger", "app", "Look at a ledger, check it, publish again, pay for more ticks."),
}


_EXTRAS: Final = {
    "psycopg": "postgres",
    "matplotlib": "plots",
    "torch": "train",
    "safetensors": "train",
    "pyflink": "flink",
}
"""What is installed only where it is asked for."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _LazyGroup(TyperGroup):
    """Lists commands by their summaries and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in _COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.summary), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _load(name), rest


def _load(name: str) -> Any:
    entry = _COMMANDS[name]
    target = getattr(importlib.import_module(f"evertally.pipelines.cli.{entry.module}"), entry.attribute)
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name)(target)
        target = single
    command = typer.main.get_command(target)
    show_examples(name, command)
    return command


app = typer.Typer(
    cls=_LazyGroup,
    help="Running totals of never-ending event streams under differential privacy that never runs out.",
    epilog="Exit codes: 0 done, 2 bad input or configuration, 3 budget refused, 4 integrity failure or full "
    "disk, 5 a needed service is unreachable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, exact sums among them
)


def _version(wanted: bool) -> None:
    if wanted:
        version = importlib.metadata.version("evertally")
        emit({"version": version}, f"evertally {version}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the root."""


def main() -> None:
    """Entry point of the program `evertally`."""
    hold_standard_files()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except EvertallyError as error:
        report_error(error)
        sys.exit(error.exit_code)
    except Exception as error:  # the last line of defence
        module = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and module in _EXTRAS:
            needed = f"the extra `{_EXTRAS[module]}` of the wheel"
            missing = InvalidParameter("environment", f"no module {module}", needed)
            report_error(missing)
            sys.exit(missing.exit_code)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:  # also of a help page's output
            full = StorageFull(f"something could not be written ({error.strerror})")
            report_error(full)
            sys.exit(full.exit_code)
        # an unforeseen error's own text may hold data, so only its type and place are printed
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"evertally: internal error {type(error).__name__} at {place.name}:{place.lineno}",
            file=sys.stderr,
        )
        sys.exit(1)


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signal API's form
    # straight to the descriptor: the signal may have come in the middle of another print
    os.write(2, b"evertally: stopped; anything that was released is in the ledger\n")
    raise SystemExit(128 + number)
