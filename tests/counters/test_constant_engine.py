"""The constant-memory engine: integers equal everywhere, its own sensitivity, restarts, the lemma."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evertally.counters import constant_engine
from evertally.counters.constant_engine import FRACTION_BITS, _ManyKeys
from evertally.counters.constant_sensitivity import _norm_squared, constant_decay, constant_norm_squared
from evertally.counters.log_perturbed import LogPerturbed
from evertally.counters.log_perturbed_nodes import THETA_BITS, WEIGHT_BITS, DyadicNodes, dyadic_nodes
from evertally.counters.participation_norm import finite_pattern_norm, infinite_pattern_norm
from evertally.counters.rational_roots import decay_norm_squared
from evertally.errors import IntegrityError, UnsupportedMechanism

IntArray = NDArray[np.int64]
UNIT = 2.0**30
EULER = 0.5772156649015329


class FixedSource:
    """Draws that depend on the seed, the key and the tick only."""

    def __init__(self, keys: int = 1, seed: int = 3, only: int | None = None) -> None:
        self.all_keys, self.seed, self.only = keys, seed, only
        self.keys = keys if only is None else 1

    def block(self, first: int, count: int) -> IntArray:
        rows = [
            np.rint(np.random.default_rng((self.seed, t)).standard_normal(self.all_keys) * UNIT)
            for t in range(first, first + count)
        ]
        block = np.array(rows).reshape(count, self.all_keys).astype(np.int64)
        return block if self.only is None else block[:, self.only : self.only + 1]


def realised(ratio: float, alpha: float = 0.01) -> LogPerturbed:
    return LogPerturbed(alpha, ratio, memory="constant")


def yardstick(t: float) -> float:
    """V_t to 1e-9 for t >= 2^12."""
    return (math.log(t) + EULER + 4 * math.log(2)) / math.pi


# Norms and ratios of the dyadic mechanism at alpha = 0.01: ||R'||^2, then variance over V_t^2.
GOLDEN = {
    0.0: (1.7896, {12: 2.39, 20: 2.56, 24: 2.61, 32: 2.69}),
    1.0: (5.0506, {12: 2.05, 20: 1.71, 24: 1.61, 32: 1.47}),
    1.2: (6.6144, {12: 2.17, 20: 1.72, 24: 1.59, 32: 1.41}),
}


@pytest.mark.parametrize("ratio", GOLDEN)
def test_golden_norm_and_variance(ratio: float) -> None:
    norm, ratios = GOLDEN[ratio]
    mechanism = realised(ratio)
    found = mechanism.sensitivity_squared()
    assert found == pytest.approx(norm, abs=6e-5)
    for power, golden in ratios.items():
        variance = found * mechanism.noise_power(2**power)
        assert variance / yardstick(2.0**power) ** 2 == pytest.approx(golden, abs=6e-3)


def test_participations_of_few_nodes_equal_their_sum() -> None:
    """R decays fast here, so that its coefficients, by recursion, are all there is."""
    one, theta = 1 << WEIGHT_BITS, 1 << THETA_BITS
    nodes = DyadicNodes((one // 5, one // 7, one // 3), (theta // 1000, theta * 3 // 4, theta))
    decay = constant_decay(nodes)
    weights = [w / one for w in nodes.weights]
    noise = [1.0] + [
        sum(w * (t / theta) ** n for w, t in zip(weights, nodes.thetas, strict=True)) for n in range(1, 400)
    ]
    steps = np.diff(noise, prepend=0.0)
    strategy = [1.0]
    for n in range(1, 400):
        strategy.append(-float(steps[1 : n + 1] @ strategy[::-1]))
    for k, b in ((1, 1), (2, 1), (2, 7), (5, 1), (30, 3), (9, 20)):
        summed = np.zeros(400)
        for i in range(k):
            summed[i * b :] += strategy[: 400 - i * b]
        assert decay_norm_squared(decay, k, b, None) == pytest.approx(float(summed @ summed), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", GOLDEN)
def test_far_participations_cost_what_their_overlap_does(ratio: float) -> None:
    """sens^2 = k r(0) + 2 sum (k-m) r(mb), r falling: at most k r(0) + k (k-1) r(b), for any k and b."""
    mechanism = realised(ratio)
    once = mechanism.sensitivity_squared()

    def overlap(b: int) -> float:
        return mechanism.sensitivity_squared(2, b) / 2.0 - once

    before = once
    for b in (1, 100, 2**14, 2**20, 2**30, 2**40):
        assert 0.0 < overlap(b) < before
        before = overlap(b)
    for k, b in ((365, 86_400), (30, 2**20), (10**4, 2**22), (10, 2**40)):
        most = k * once + k * (k - 1) * overlap(min(b, 2**14))
        assert k * once < mechanism.sensitivity_squared(k, b) <= most
    strategy = mechanism.strategy_coefficients(2**18)
    for k, b in ((2, 1), (30, 1), (5, 200)):
        found = mechanism.sensitivity_squared(k, b)
        assert finite_pattern_norm(strategy, k, b) < found
        assert found <= infinite_pattern_norm(strategy, once, k, b)


@pytest.mark.parametrize("ratio", GOLDEN)
def test_weights_are_positive_dyadic_and_sum_to_one(ratio: float) -> None:
    nodes = dyadic_nodes(0.51, -ratio * 0.51)
    assert min(nodes.weights) > 0
    assert nodes.at_zero >= 0
    assert sum(nodes.weights) + nodes.at_zero == 1 << WEIGHT_BITS
    assert list(nodes.thetas) == sorted(set(nodes.thetas))
    assert nodes.thetas[-1] == 1 << THETA_BITS
    assert nodes.thetas[0] > 0
    assert len(nodes.thetas) <= 103


@pytest.mark.parametrize("ratio", GOLDEN)
def test_coefficients_are_close_to_the_exact_ones(ratio: float) -> None:
    exact = LogPerturbed(0.01, ratio).noise_coefficients(2**15)
    found = realised(ratio).noise_coefficients(2**15)
    assert found[0] == 1.0
    assert np.max(np.abs(found / exact - 1.0)) < 2e-10


@pytest.mark.parametrize(("alpha", "ratio"), [(0.01, 0.0), (1.0, 1.2), (1.0, 1.0)])
def test_strategy_inverts_and_its_norm_bounds_partial_sums(alpha: float, ratio: float) -> None:
    mechanism = realised(ratio, alpha)
    n = 4096
    strategy, noise = mechanism.strategy_coefficients(n), mechanism.noise_coefficients(n)
    assert np.max(np.abs(np.convolve(noise, strategy)[:n] - 1.0)) < 1e-13
    assert np.all(np.diff(strategy) < 0)
    assert strategy[-1] > 0
    assert np.dot(strategy, strategy) < mechanism.sensitivity_squared()
    assert math.fsum(noise**2) == pytest.approx(mechanism.noise_power(n), rel=1e-13)


def test_norm_of_a_mechanism_with_a_known_one() -> None:
    # L = 1/2 + (1/2)/(1-z): (1-z) L = 1 - z/2, so R = sum 2^-n z^n and ||R||^2 = 4/3.
    half = 1 << (WEIGHT_BITS - 1)
    nodes = DyadicNodes((half,), (1 << THETA_BITS,))
    assert constant_norm_squared(nodes) == pytest.approx(4 / 3, rel=1e-11)
    assert constant_norm_squared(nodes) >= 4 / 3


def test_quadrature_is_stable() -> None:
    nodes = dyadic_nodes(0.51, -0.612)
    values = [_norm_squared(nodes, panels) for panels in (96, 128, 256, 512)]
    assert max(values) / min(values) - 1 < 1e-13


@pytest.mark.parametrize(("alpha", "ratio"), [(0.01, 0.0), (1.0, 1.2)])
def test_kappa_is_the_norm_of_the_inverse(alpha: float, ratio: float) -> None:
    mechanism = realised(ratio, alpha)
    th = np.linspace(1e-4, np.pi, 20_000)
    weights, decays = mechanism._nodes.arrays()
    f = np.sum(weights[:, None] / (1 - (1 - decays[:, None]) * np.exp(1j * th)), axis=0)
    f += mechanism._nodes.at_zero / 2.0**WEIGHT_BITS
    assert np.max(1 / np.abs(f)) <= mechanism.kappa
    assert mechanism.kappa == pytest.approx(1 / abs(f[-1]), rel=1e-12)


@pytest.mark.parametrize("ratio", [0.0, 1.2])
def test_noise_identity_and_closeness_to_the_exact_convolution(ratio: float) -> None:
    mechanism = realised(ratio)
    n = 3000
    z, h = mechanism.engine(FixedSource()).run(n)
    y = z[:, 0] + h[:, 0]
    exact = np.convolve(mechanism.noise_coefficients(n), z[:, 0].astype(np.longdouble))[:n]
    error = np.abs(y - exact).astype(float)
    # Half a unit from the last rounding; the lemma allows sum_j W_j / (1 - theta_j) floors more at worst.
    assert error.max() < 1.0
    assert error.max() > 0.1
    recovered = np.convolve(mechanism.strategy_coefficients(n), np.diff(y / UNIT, prepend=0.0))[:n]
    assert np.max(np.abs(recovered - z[:, 0] / UNIT)) < 3e-9


def test_one_key_many_keys_and_wide_integers_agree() -> None:
    mechanism = realised(1.2)
    n = 1200
    z, h = mechanism.engine(FixedSource(5)).run(n)
    z1, h1 = mechanism.engine(FixedSource(5, only=2)).run(n)
    assert np.array_equal(z[:, 2:3], z1)
    assert np.array_equal(h[:, 2:3], h1)
    wide = mechanism.engine(FixedSource(5))
    assert isinstance(wide, _ManyKeys)
    wide._states = wide._states.astype(object)
    z2, h2 = wide.run(200)
    assert np.array_equal(z2, z[:200])
    assert np.array_equal(h2, h[:200])


def test_steps_equal_a_run() -> None:
    for keys in (1, 3):
        mechanism = realised(0.0)
        z, h = mechanism.engine(FixedSource(keys)).run(300)
        engine = mechanism.engine(FixedSource(keys))
        for t in range(300):
            step_z, step_h = engine.step()
            assert np.array_equal(step_z, z[t])
            assert np.array_equal(step_h, h[t])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_int64_limbs_equal_python_integers(data: st.DataObject) -> None:
    """States of any size up to the limit, against plain integers."""
    nodes = dyadic_nodes(0.51, -0.612)
    limit = (1 << 60) - 1
    edge = st.sampled_from([-limit, -limit + 1, -(1 << 31), -1, 0, 1, (1 << 31) - 1, 1 << 31, limit])
    value = st.one_of(edge, st.integers(-limit, limit))
    few = data.draw(st.lists(value, min_size=8, max_size=8))
    states = [few[i % 8] if i % 3 else -few[(i + 3) % 8] for i in range(len(nodes.thetas))]
    z = data.draw(st.integers(-(1 << 35), 1 << 35))
    engine = _ManyKeys(nodes, FixedSource(2), None)
    engine._states = np.array([states, states], dtype=np.int64).T.copy()
    found = engine._advance(slice(0, 2), np.array([z, z]))
    kept = [s * theta >> 62 for s, theta in zip(states, nodes.thetas, strict=True)]
    total = sum(w * d for w, d in zip(nodes.weights, kept, strict=True))
    assert found.tolist() == [(total + (1 << (51 + FRACTION_BITS))) >> (52 + FRACTION_BITS)] * 2
    assert engine._states[:, 1].tolist() == [d + (z << FRACTION_BITS) for d in kept]


def test_outgrown_int64_hands_over_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = realised(1.2)
    z, h = mechanism.engine(FixedSource(2)).run(60)
    monkeypatch.setattr(constant_engine, "_LIMIT", 1 << 45)
    monkeypatch.setattr(constant_engine, "_CHECK_TICKS", 7)
    engine = mechanism.engine(FixedSource(2))
    z2, h2 = engine.run(60)
    assert isinstance(engine, _ManyKeys)
    assert engine._states.dtype == object
    assert np.array_equal(z2, z)
    assert np.array_equal(h2, h)


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("t", [0, 1, 255, 256, 257])
def test_restart_equals_uninterrupted(keys: int, t: int) -> None:
    mechanism = realised(1.2)
    z, h = mechanism.engine(FixedSource(keys)).run(400)
    first = mechanism.engine(FixedSource(keys))
    first.run(t)
    second = mechanism.engine(FixedSource(keys))
    second.load(first.state(), t)
    z2, h2 = second.run(400 - t)
    assert second.t == 400
    assert np.array_equal(z2, z[t:])
    assert np.array_equal(h2, h[t:])


def test_a_state_of_one_key_fits_a_column_of_many() -> None:
    """Same format, so the size a key is the same in both engines and never changes."""
    mechanism = realised(1.2)
    one, many = mechanism.engine(FixedSource()), mechanism.engine(FixedSource(4))
    empty = len(one.state())
    one.run(300)
    many.run(300)
    assert len(one.state()) == empty
    header = 21
    assert len(many.state()) - header == 4 * (len(one.state()) - header)
    for engine, t in ((one, 300), (many, 300)):
        for bad in (engine.state()[:-1], b"", engine.state() + b"\x00"):
            with pytest.raises(IntegrityError):
                engine.load(bad, t)
        with pytest.raises(IntegrityError):
            engine.load(engine.state(), t + 1)


def test_horizon_is_refused() -> None:
    for keys in (1, 2):
        engine = LogPerturbed(0.01, 1.2, horizon=20, memory="constant").engine(FixedSource(keys))
        engine.run(20)
        with pytest.raises(UnsupportedMechanism, match="horizon=20"):
            engine.step()
        assert engine.t == 20


@pytest.mark.parametrize(("alpha", "ratio"), [(1.0, 0.0), (0.5, 0.0), (0.2, 0.0), (1.0, 2.0)])
def test_a_density_that_is_not_positive_is_refused(alpha: float, ratio: float) -> None:
    with pytest.raises(UnsupportedMechanism, match="positive density"):
        LogPerturbed(alpha, ratio, memory="constant")


def test_declared_accounting_of_states() -> None:
    mechanism = realised(1.2)
    assert mechanism.eta == 0.0
    assert mechanism.state_rounding == 100 * 2.0**-12


def test_rounding_of_a_state_is_not_amplified() -> None:
    """The lemma behind state_rounding: |W_i/f_L| <= 1 on the circle, W_i = w_i/(1 - theta_i z)."""
    nodes = dyadic_nodes(0.51, -0.612)
    weights, decays = nodes.arrays()
    th = np.concatenate([np.geomspace(1e-18, 1e-3, 2000), np.linspace(1e-3, np.pi, 2000)])
    one_minus_z = -2j * np.sin(th / 2) * np.exp(0.5j * th)
    parts = weights[:, None] / (decays[:, None] + (1 - decays[:, None]) * one_minus_z)
    total = parts.sum(axis=0) + nodes.at_zero / 2.0**WEIGHT_BITS
    assert np.max(np.abs(parts / total)) <= 1.0 + 1e-12
