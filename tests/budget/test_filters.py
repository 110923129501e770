from __future__ import annotations

import math

import mpmath
import pytest

from evertally.accountants.budget.filters import gaussian_cap, renyi_cap, renyi_cap_value, zcdp_cap
from evertally.accountants.budget.scopes import Scope
from evertally.accountants.gaussian import gaussian_delta
from evertally.errors import InvalidParameter

# mu -> epsilon at delta 1e-6 (closed form of the Gaussian trade-off, 256-bit arithmetic)
GOLDEN = [(0.1, 0.3968573776), (0.5, 2.2540846502), (1.0, 4.8865541175), (2.0, 10.9971512142)]


@pytest.mark.parametrize(("mu", "epsilon"), GOLDEN)
def test_gaussian_cap_is_the_exact_inverse_rounded_down(mu: float, epsilon: float) -> None:
    cap = gaussian_cap(epsilon, 1e-6)
    assert cap == pytest.approx(mu * mu * 1e9, rel=2e-9, abs=2)
    assert gaussian_delta(epsilon, math.sqrt(cap / 1e9)) <= 1e-6 * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_cap_beats_the_zcdp_conversion(epsilon: float, delta: float) -> None:
    rho = zcdp_cap(epsilon, delta) / 2e9
    assert rho + 2 * math.sqrt(rho * -math.log(delta)) <= epsilon * (1 + 1e-9)
    assert 1.05 * zcdp_cap(epsilon, delta) < gaussian_cap(epsilon, delta)


@pytest.mark.parametrize("order", [1.5, 2.0, 16.0, 64.0])
def test_renyi_cap_inverts_the_conversion(order: float) -> None:
    with mpmath.workdps(40):
        a, delta, epsilon = mpmath.mpf(order), mpmath.mpf("1e-6"), mpmath.mpf("60")
        want = epsilon - mpmath.log((a - 1) / a) + (mpmath.log(delta) + mpmath.log(a)) / (a - 1)
        got = renyi_cap_value(order, 60.0, 1e-6)
        assert want * (1 - mpmath.mpf("1e-12")) <= got <= want
        back = got + mpmath.log((a - 1) / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)
        assert back <= epsilon


def test_order_without_a_positive_cap_is_refused() -> None:
    assert renyi_cap_value(2.0, 1.0, 1e-6) < 0
    with pytest.raises(InvalidParameter, match="order"):
        renyi_cap(2.0, 1.0, 1e-6)
    with pytest.raises(InvalidParameter):
        Scope("r", "event", "add-remove", 1.0, 1e-6, filter="renyi", order=2)


@pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf, -2.0])
def test_orders_up_to_one_are_refused(order: float) -> None:
    # opacus#49: order 1 divides by zero
    with pytest.raises(InvalidParameter):
        renyi_cap_value(order, 1.0, 1e-6)
