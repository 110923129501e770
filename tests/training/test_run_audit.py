"""Canaries in whole runs: what can be guessed of them never refutes the epsilon that the run reports."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.training.training_audit import Audit, epsilon_lower, p_value

from evertally.pipelines.training.noise import StepNoise
from evertally.pipelines.training.run_open import Seams

pytestmark = pytest.mark.train


class Silent(StepNoise):
    """No noise at all, under the epsilon of a run that has it."""

    def draw(self, step: int, tensor: int, count: int, *, first: int = 0) -> NDArray[np.int64]:
        return np.zeros_like(super().draw(step, tensor, count, first=first))


class Faint(StepNoise):
    """A sixteenth of the noise that was paid for."""

    def draw(self, step: int, tensor: int, count: int, *, first: int = 0) -> NDArray[np.int64]:
        return super().draw(step, tensor, count, first=first) >> 4


def test_the_bound_on_guesses() -> None:
    """All of r right refutes epsilon = log(q / (1 - q)), q = 0.05^(1/r); half of them refute nothing."""
    q = 0.05 ** (1 / 100)
    assert epsilon_lower(200, 100, 100, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-9)
    assert epsilon_lower(200, 100, 50, 0.0) == 0.0
    assert epsilon_lower(200, 100, 100, 1e-5) < epsilon_lower(200, 100, 100, 0.0)
    assert p_value(200, 100, 0, 1.0, 1e-5) == 1.0
    random = np.random.default_rng(0)
    right = random.binomial(100, 1 / (1 + math.exp(-1.0)), 400)  # randomised response: it is tight there
    lower = {int(n): epsilon_lower(100, 100, int(n), 0.0) for n in np.unique(right)}
    refuted = np.mean([lower[int(n)] > 1.0 for n in right])
    assert 0.01 < refuted <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("transform", ["none", "relative"])
def test_canaries_refute_no_epsilon_that_a_run_reports(transform: str, tmp_path: Path) -> None:
    tables = {"preconditioner": f'transform = "{transform}"\nprobes = 64'}
    audit = Audit(tmp_path / "toy", 160, noise_multiplier=0.5, seed=1, tables=tables)
    assert 0.3 < audit.lower <= audit.epsilon


@pytest.mark.parametrize("noise", [Silent, Faint])
def test_the_audit_fires_where_noise_is_missing(noise: type[StepNoise], tmp_path: Path) -> None:
    audit = Audit(tmp_path / "toy", 160, noise_multiplier=4.0, seed=2, seams=Seams(noise=noise))
    assert audit.epsilon < 1.5 < audit.lower


@pytest.mark.soak
@pytest.mark.parametrize("noise_multiplier", [0.4, 0.7, 1.5])
@pytest.mark.parametrize(
    "strategy",
    ["", 'strategy = "bsr"\nbands = 2', 'strategy = "blt"\noutput_scales = [0.3]\nbuffer_decays = [0.5]'],
    ids=["identity", "bsr", "blt"],
)
@pytest.mark.parametrize("transform", ["none", "relative", "paper"])
def test_audits_of_every_kind_of_run(
    noise_multiplier: float, strategy: str, transform: str, tmp_path: Path
) -> None:
    """27 kinds, 2 runs each; a wrong alarm in any of them has a chance below 1e-3."""
    tables = {
        "preconditioner": f'transform = "{transform}"\nprobes = 64',
        "training": "batches = 3\nepochs = 2\nexpected_units = 600\ncheckpoint_steps = 6\n" + strategy,
    }
    found = [
        Audit(
            tmp_path / f"toy-{seed}", 400, noise_multiplier=noise_multiplier, seed=seed, tables=tables,
            confidence=1.0 - 1e-3 / 54, delta=1e-10,
        )
        for seed in range(2)
    ]  # fmt: skip
    assert all(audit.lower <= audit.epsilon for audit in found)
    if noise_multiplier < 0.5:
        assert all(audit.lower > 1.0 for audit in found)  # or nothing was audited; 1.85 is the least seen
    print(strategy, transform, noise_multiplier, [(round(a.lower, 2), round(a.epsilon, 2)) for a in found])
