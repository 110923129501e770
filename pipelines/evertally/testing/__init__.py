"""Helpers for tests of evertally and of what stands on it: settable clock, fixed noise, crashes, a checker.

Nothing in the shipped program imports this package, and no environment variable or option switches any
of it on: noise can be fixed only by handing an object from here to a counter, in code.
"""

from evertally.testing.clocks import FakeClock
from evertally.testing.crashes import CrashingSink, CrashingStore, CrashPoints, SimulatedCrash
from evertally.testing.history import HistoryChecker
from evertally.testing.noise import FixedNoise, RecordingNoise

__all__ = [
    "CrashPoints",
    "CrashingSink",
    "CrashingStore",
    "FakeClock",
    "FixedNoise",
    "HistoryChecker",
    "RecordingNoise",
    "SimulatedCrash",
]
