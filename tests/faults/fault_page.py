"""docs/faults.md's table of long runs: written by the runs themselves, where EVERTALLY_FAULT_PAGE is set."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PAGE", "record"]

PAGE: Final = "EVERTALLY_FAULT_PAGE"
_TABLE: Final = re.compile(r"(?<=<!-- begin runs -->\n)(.*\n)*?(?=<!-- end runs -->)")


def record(counts: Mapping[str, int], seed: int, operations: int, seconds: float) -> None:
    """Put the run that has just passed into the table, in place of an earlier one of the same test."""
    page = os.environ.get(PAGE)
    if not page:
        return
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].removeprefix("tests/")
    what = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = os.getloadavg()[0]
    row = f"| `{test}` | {what} | {operations:,} | 0 | {seed} | {today}, {seconds:,.0f} s, load {load:.0f} |"
    path = Path(page)
    text = path.read_text()
    found = _TABLE.search(text)
    assert found is not None, f"{page} has no table of runs"
    head, rule, *rows = found[0].splitlines()
    rows = sorted([*(old for old in rows if f"`{test}`" not in old), row])
    path.write_text(text[: found.start()] + "\n".join([head, rule, *rows]) + "\n" + text[found.end() :])
