"""A machine whose wall clock is set while programs run: Python imports this at its start from PYTHONPATH.

The file EVERTALLY_TEST_CLOCK holds by how many seconds it was set. The monotonic clock runs on, as it does on
a real machine. (libfaketime, which does the same in C, breaks how programs wait for sockets.)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["EVERTALLY_TEST_CLOCK"])
_time_ns = time.time_ns


def _set_ns() -> int:
    return _time_ns() + int(_FILE.read_text() or "0") * 10**9


time.time_ns = _set_ns
time.time = lambda: _set_ns() / 1e9
