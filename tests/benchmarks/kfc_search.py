"""The search that tunes every compared method alike, and its runs, which are kept beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.kfc_training import METHODS, Method

EPSILONS, FRESH = (1.0, 2.0, 8.0), (1, 2, 3)
CLIP, OTHER_CLIPS, RATES_MAX = 0.3, (0.1, 1.0), 6
RUNS: Final = Path(__file__).with_name("kfc_runs.json")
IMAGES_ONLY = ("kfc-1", "kfc-lit", "kfc-digits", "kfc-photographs")


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a search."""

    rate: float
    clip: float

    @property
    def key(self) -> str:
        return f"{self.rate:.4g}|{self.clip:g}"


def suited(name: str) -> list[str]:
    """The methods that a task has: text has one kind of synthetic probe, and one public set."""
    return [method for method in METHODS if name != "text" or method not in IMAGES_ONLY]


def key_of(name: str, epsilon: float, method: str, setting: Setting, seed: int) -> str:
    """The name of a run; without noise a run is the same at every epsilon."""
    spent = epsilon if METHODS[method].noise else EPSILONS[0]
    return f"{name}|{spent:g}|{method}|{setting.key}|{seed}"


def load() -> dict[str, Any]:
    """All runs by key."""
    return json.loads(RUNS.read_text("utf-8")) if RUNS.exists() else {}


def keep(runs: dict[str, Any]) -> None:
    """Replace the stored runs at once, a line each, so that a reader never sees half of them."""
    lines = [f"{json.dumps(key)}: {json.dumps(runs[key])}" for key in sorted(runs)]
    fresh = RUNS.with_suffix(".new")
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    os.replace(fresh, RUNS)


def search(method: Method, accuracy: Callable[[Setting], float]) -> Setting:
    """The best setting by a search that is the same for all; `accuracy` is asked a setting at a time."""

    def at(rate: float, clip: float) -> Setting:
        return Setting(rate / clip if method.scales else rate, clip)

    found = {rate: accuracy(at(rate, CLIP)) for rate in method.rates}
    best = max(found, key=lambda rate: found[rate])
    while len(found) < RATES_MAX and best in (low := min(found), high := max(found)):
        rate = low / 2 if best == low else 2 * high
        found[rate] = accuracy(at(rate, CLIP))
        best = max(found, key=lambda rate: found[rate])
    settings = {at(best, CLIP): found[best]}
    for clip in OTHER_CLIPS if method.noise else ():
        settings[at(best, clip)] = accuracy(at(best, clip))
    return max(settings, key=lambda setting: settings[setting])


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of one method at one task and epsilon.

    Attributes:
        setting: the best one of the search.
        fresh: accuracies in percent on fresh seeds.
        search_runs: runs of the search.
        search_cpu_s: their CPU seconds.
        run_cpu_s: CPU seconds of each fresh run.
        sigma: noise multiplier.
    """

    setting: Setting
    fresh: list[float]
    search_runs: int
    search_cpu_s: float
    run_cpu_s: list[float]
    sigma: float


def summary(runs: dict[str, Any], name: str, epsilon: float, method: str) -> Summary | None:
    """The search replayed on what was run, or None where it is not whole."""
    tried: list[dict[str, Any]] = []

    def accuracy(setting: Setting) -> float:
        tried.append(runs[key_of(name, epsilon, method, setting, 0)])
        return float(tried[-1]["accuracy"])

    try:
        best = search(METHODS[method], accuracy)
    except KeyError:
        return None
    keys = [key_of(name, epsilon, method, best, seed) for seed in FRESH]
    fresh = [runs[key] for key in keys if key in runs]
    return Summary(
        setting=best,
        fresh=[run["accuracy"] for run in fresh],
        search_runs=len(tried),
        search_cpu_s=sum(run["cpu_s"] for run in tried),
        run_cpu_s=[run["cpu_s"] for run in fresh],
        sigma=tried[0]["sigma"],
    )
