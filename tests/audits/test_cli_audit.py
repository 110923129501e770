"""The mu that `evertally run` states, against what its releases give away; and faults that must show.

An adversary who knows everything but one privacy unit looks at the releases through linear statistics. Along
the whitened difference R x two neighbours are as far apart, in standard deviations, as mu allows, and no
statistic may separate them by more. Besides that one the adversary tries what would show noise that is used
twice: the difference of two keys, of two halves of the ticks, of two runs.

For each the lower confidence bound on the separation is taken at 1 - 1e-7/4, so an honest program fails once
in 10^7 runs a stream. With N trials of either world the bound lies below the separation d by
5.5 sqrt(2/N + d^2/(4N)); every fault is at least 4 standard errors beyond the claim, so that one is missed
once in 3 x 10^4 runs (noise x 0.9; the others never). The stream's id is random, as it has to be, so the
noise of a run is fresh even under the fixed key file.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri
from tests.audits.mutants import RESET_TICKS
from tests.audits.streams import Audited, Released, forget_the_ledger, run

CONFIDENCE = -float(ndtri(1e-7 / 4))
TIGHT = "log-perturbed:alpha=1.0,loglog_ratio=1.2,horizon={},memory=constant"
"""Its sensitivity is that of exactly so many ticks: nothing of mu is kept for ticks that never come."""

HONEST = {
    "one event": Audited(TIGHT.format(16), 16, 3000),
    "the default mechanism": Audited("rational:W32", 16, 1500),
    "a person in three ticks": Audited(TIGHT.format(16), 16, 1500, contributions=(1, 2, 3), participations=3),
}
FULL = {
    "one event": Audited(TIGHT.format(64), 64, 100_000),
    "one event, little noise": Audited(TIGHT.format(64), 64, 50_000, mu=8.0),
    "one event, much noise": Audited(TIGHT.format(64), 64, 100_000, mu=0.5),
    "the default mechanism": Audited("rational:W32", 64, 50_000, mu=1.0),
    "a person in three ticks": Audited(
        TIGHT.format(64), 64, 50_000, mu=1.0, contributions=(1, 2, 3), participations=3
    ),
}


def lower_bound(base: NDArray[np.float64], neighbour: NDArray[np.float64]) -> float:
    """Lower confidence bound on the distance of two means in standard deviations; samples of equal size."""
    pooled = math.sqrt((base.var(ddof=1) + neighbour.var(ddof=1)) / 2)
    apart = abs(float(neighbour.mean() - base.mean()))
    if pooled < 1e-9:
        return math.inf if apart > 1e-9 else 0.0
    separation, n = apart / pooled, len(base)
    return separation - width(separation, n)


def width(separation: float, n: int) -> float:
    """How far the bound lies below the separation that was seen in n trials of either world."""
    return CONFIDENCE * math.sqrt(2 / n + separation**2 / (4 * n))


def require_power(stream: Audited, seen: Released, bound: float) -> None:
    """No idle claim: what is seen lies a width above the bound, and less than one below mu."""
    if stream.mechanism.startswith("log-perturbed"):
        assert bound > seen.mu - 2 * width(seen.mu, stream.trials)


def mu_lower(stream: Audited, seen: Released) -> float:
    """The best lower bound on mu that the adversary's statistics give."""
    steps = np.eye(stream.ticks) - np.eye(stream.ticks, k=-1)
    white = stream.strategy() @ steps
    base, neighbour = white @ seen.base, white @ seen.neighbour
    direction = stream.strategy() @ stream.difference()
    found = [lower_bound(direction @ base, direction @ neighbour)]
    pair_base, pair_neighbour = base[:, 0::2] - base[:, 1::2], neighbour[:, 0::2] - neighbour[:, 1::2]
    found.append(lower_bound(direction @ pair_base, direction @ pair_neighbour))
    again = slice(RESET_TICKS, 2 * RESET_TICKS)
    folded = direction[again] - direction[:RESET_TICKS]
    twice_base, twice_neighbour = base[again] - base[:RESET_TICKS], neighbour[again] - neighbour[:RESET_TICKS]
    found.append(lower_bound(folded @ twice_base, folded @ twice_neighbour))
    return max(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_the_installed_program_keeps_its_claim(name: str, tmp_path: Path) -> None:
    stream = HONEST[name]
    seen = run(tmp_path, stream)
    assert seen.mu <= stream.mu
    bound = mu_lower(stream, seen)
    assert bound <= seen.mu
    require_power(stream, seen, bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "stream"),
    [
        ("noise-0.9", HONEST["one event"]),
        ("noise-0.5", Audited(TIGHT.format(16), 16, 300)),
        ("norm-forgotten", Audited(TIGHT.format(16), 16, 1500)),
        ("shared-by-two-keys", Audited(TIGHT.format(16), 16, 300, every=2)),
        ("tick-reset", Audited(TIGHT.format(16), 16, 300)),
        (
            "charged-as-one",
            Audited(TIGHT.format(16), 16, 300, contributions=(1, 2, 3), participations=3),
        ),
    ],
)
def test_a_fault_is_caught(fault: str, stream: Audited, tmp_path: Path) -> None:
    seen = run(tmp_path, stream, fault)
    assert seen.mu <= stream.mu  # it claims what an honest one claims
    assert mu_lower(stream, seen) > seen.mu


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "stream-id-forgotten"])
def test_a_lost_ledger_and_a_kept_key(fault: str, tmp_path: Path) -> None:
    """Run again over neighbouring data: two charges, and the runs' difference gives no more than they say."""
    stream = Audited(TIGHT.format(16), 16, 300)
    before = run(tmp_path, stream, fault, neighbour=False)
    forget_the_ledger(tmp_path)
    after = run(tmp_path, stream, fault)
    gone = Released(after.mu, after.base - before.base, after.neighbour - before.neighbour)
    allowed = math.hypot(before.mu, after.mu)
    assert (mu_lower(stream, gone) > allowed) == (fault != "none")


@pytest.mark.soak
@pytest.mark.parametrize("name", FULL)
def test_the_installed_program_keeps_its_claim_at_full_size(name: str, tmp_path: Path) -> None:
    """2 x 10^5 trials and 64 ticks, in parts that fit a run."""
    stream = FULL[name]
    part = Audited(
        stream.mechanism, stream.ticks, 10_000, stream.mu, stream.contributions, stream.participations
    )
    runs = [run(tmp_path / str(n), part) for n in range(stream.trials // part.trials)]
    seen = Released(
        runs[0].mu,
        np.concatenate([one.base for one in runs], axis=1),
        np.concatenate([one.neighbour for one in runs], axis=1),
    )
    bound = mu_lower(stream, seen)
    assert bound <= seen.mu
    require_power(stream, seen, bound)


def test_the_bound_is_a_bound() -> None:
    """On draws whose separation is known: not above it, and close to it."""
    rng = np.random.default_rng(5)
    for separation in (0.0, 1.0, 4.0):
        base, neighbour = rng.normal(size=100_000), separation + rng.normal(size=100_000)
        bound = lower_bound(base, neighbour)
        assert separation - 0.1 < bound < separation + 1e-9
    assert lower_bound(np.zeros(9), np.ones(9)) == math.inf
    assert lower_bound(np.zeros(9), np.zeros(9)) == 0.0
