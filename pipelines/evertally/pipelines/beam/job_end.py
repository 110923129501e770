"""The end of a job: asked for by a signal, or a failure in its runner, told as the house's errors."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from apache_beam.runners.runner import PipelineState

from evertally.errors import (
    EvertallyError,
    Fenced,
    IntegrityError,
    InvalidParameter,
    ServiceUnavailable,
    StorageFull,
)

__all__ = ["wait_for_end"]

_LIBRARIES: Final = ("apache_beam", "grpc")
_MISTAKE: Final = re.compile(r"InvalidParameter: (\S+): got (.*), expected (.*)")


def _mistake(text: str) -> EvertallyError:
    """A worker's InvalidParameter, put together again from its words."""
    words = _MISTAKE.fullmatch(text)
    if words is None:
        return IntegrityError(text)
    field, got, expected = words.groups()
    with contextlib.suppress(ValueError, SyntaxError):
        got = ast.literal_eval(got)
    return InvalidParameter(field, got, expected)


_REASONS: Final[dict[str, Callable[[str], EvertallyError]]] = {
    "BudgetExceeded": IntegrityError,  # a budget that refuses is met before the job is submitted
    "StorageFull": StorageFull,
    "Fenced": Fenced,
    "IntegrityError": IntegrityError,
    "InvalidParameter": _mistake,
    "ServiceUnavailable": ServiceUnavailable,
}


def wait_for_end(result: Any) -> str:
    """The state in which a submitted job ended. The first SIGTERM or SIGINT cancels it: what is not released
    yet is counted by the next job. A second signal stops at once; nothing is lost by it either.

    Raises the house's error behind what failed in the runner.
    """
    stopping = threading.Event()

    def cancel(number: int) -> None:
        try:
            result.cancel()
        except Exception:  # a runner that cannot: the ledger makes every end of a job a safe one
            os._exit(128 + number)

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()
        _quieten()
        threading.Thread(target=cancel, args=(number,), daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, on_signal)
    try:
        return str(result.wait_until_finish())
    except EvertallyError:
        raise
    except RuntimeError as error:  # a runner's word for a step that failed; its own text may quote data
        if stopping.is_set():
            return str(PipelineState.CANCELLED)
        raise _reason(str(error)) from None


def _quieten() -> None:
    """What a runner and its threads say of bundles that a stop cuts off is no failure of the job."""
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    threading.excepthook = lambda _: None


def _reason(text: str) -> EvertallyError:
    """The house's error behind a runner's, found by its name; its message is safe to show."""
    for name, kind in _REASONS.items():
        at = text.rfind(f"{name}: ")
        if at >= 0:
            return kind(text[at:].splitlines()[0].split(" [while running")[0])
    return ServiceUnavailable("the job failed in its runner; its own log says where")
