"""Many counters in one run of `evertally run`: each key is a trial of its own.

The first half of the keys sees the base data, the second half the neighbouring data, which differs by one
privacy unit a key. Every key's noise is its own, so that one run is as many trials of either world as
there are keys in its half.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evertally.counters import parse_mechanism
from evertally.pipelines.releases import StreamHeader

PROGRAM = Path(sys.executable).with_name("evertally")
MUTANTS = Path(__file__).with_name("mutants.py")
CLIP = 100  # one contribution is a hundred counts, so that rounding to counts hides nothing
MASTER = bytes(range(32))

_CONFIG = """
[stream]
name = "audit"
keys = [{keys}]
start = 2024-01-01T00:00:00Z
end = {end}
tick_s = 60
[source]
path = "events.csv"
timestamp = "at"
key = "key"
value = "amount"
{unit_field}
[privacy]
{privacy}
clip = 100
mu = {mu}
delta = 1e-6
mechanism = "{mechanism}"
[output]
releases = "releases.jsonl"
[state]
path = "state.sqlite"
key_file = "key"
"""


@dataclass(frozen=True, slots=True)
class Audited:
    """A stream to audit.

    Attributes:
        mechanism: its id.
        ticks: how many are released.
        trials: keys in each world; even.
        mu: what is asked for.
        contributions: ticks, from 1, at which the unit contributes in the second world.
        participations: how many ticks of a unit are paid for; None is event level.
        every: 2 where only every other key of the second world differs.
    """

    mechanism: str
    ticks: int
    trials: int
    mu: float = 4.0
    contributions: tuple[int, ...] = (1,)
    participations: int | None = None
    every: int = 1

    def difference(self) -> NDArray[np.float64]:
        """What the unit adds, in counts, shape (ticks,)."""
        x = np.zeros(self.ticks)
        x[np.array(self.contributions) - 1] = CLIP
        return x

    def strategy(self) -> NDArray[np.float64]:
        """R as a matrix."""
        r = parse_mechanism(self.mechanism).strategy_coefficients(self.ticks)
        rows = np.arange(self.ticks)
        return np.where(rows[:, None] >= rows, r[np.abs(rows[:, None] - rows)], 0.0)


@dataclass(frozen=True, slots=True)
class Released:
    """What was published.

    Attributes:
        mu: the claim in the header.
        base, neighbour: totals of the two worlds, shape (ticks, trials).
    """

    mu: float
    base: NDArray[np.int64]
    neighbour: NDArray[np.int64]


def run(folder: Path, stream: Audited, fault: str | None = None, *, neighbour: bool = True) -> Released:
    """One run from its files to its releases; `fault` None is the installed program itself.

    The key file holds a fixed master; what else makes the noise's key is the stream's random id.
    """
    folder.mkdir(exist_ok=True)
    _write(folder, stream, neighbour=neighbour)
    words = [str(PROGRAM)] if fault is None else [sys.executable, str(MUTANTS), fault]
    done = subprocess.run(
        [*words, "run", "--config", str(folder / "run.toml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "releases.jsonl").read_bytes().split(b"\n")
    header = StreamHeader.decode(lines[0])
    values = np.array([json.loads(line)["value"] for line in lines[1:] if line], np.int64)
    table = values.reshape(stream.ticks, 2 * stream.trials)
    return Released(header.mu, table[:, : stream.trials], table[:, stream.trials :])


def forget_the_ledger(folder: Path) -> None:
    """Delete everything but the key file, as after a failed disk: the next run is a new stream."""
    for path in folder.iterdir():
        if path.name != "key":
            path.unlink()


def _write(folder: Path, stream: Audited, *, neighbour: bool) -> None:
    names = [f"k{number:06d}" for number in range(2 * stream.trials)]
    event_level = stream.participations is None
    bounds = "" if event_level else f'unit = "person"\nparticipations = {stream.participations}'
    config = _CONFIG.format(
        keys=",".join(f'"{name}"' for name in names),
        end=_time(stream.ticks),
        unit_field="" if event_level else 'unit = "who"',
        privacy=bounds,
        mu=stream.mu,
        mechanism=stream.mechanism,
    )
    rows = ["at,key,amount,who"]
    if neighbour:
        rows += [
            f"{_time(t - 1)},{name},{CLIP},{name}"
            for t in stream.contributions
            for name in names[stream.trials :: stream.every]
        ]
    (folder / "run.toml").write_text(config)
    (folder / "events.csv").write_text("\n".join(rows) + "\n")
    if not (folder / "key").exists():
        _write_key(folder / "key")


def _write_key(path: Path) -> None:
    from evertally.pipelines.keyfile import _MAGIC, _checksum

    path.touch(0o600)
    path.write_bytes(_MAGIC + MASTER + _checksum(MASTER))


def _time(minutes: int) -> str:
    return f"2024-01-01T{minutes // 60:02d}:{minutes % 60:02d}:00Z"
