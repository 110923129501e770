"""The least noise whose charge fits what is left: a quote turned round.

Whatever a search proposes is priced by `cost`, the one function that decides what is charged, before it
is answered; so an approximate search can waste budget but never understate it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_UP, Context, Decimal
from fractions import Fraction
from typing import Final

from evertally.accountants.budget.amounts import exact, mu_of_units
from evertally.accountants.budget.charges import ChargeRequest, Cost, cost
from evertally.accountants.budget.counter_loss import CounterParameters, fit_counter
from evertally.accountants.budget.lines import CounterLine, GaussianLine
from evertally.accountants.budget.loss import Line
from evertally.accountants.budget.scopes import Scope, ScopeStatus
from evertally.accountants.budget.service.schemas import CounterDraft, DraftIn, GaussianDraft, TrainingDraft
from evertally.accountants.budget.training import TrainingLine
from evertally.errors import BudgetExceeded, InvalidParameter, UnsupportedMechanism

__all__ = ["fit"]

_DIGITS: Final = Context(prec=12, rounding=ROUND_UP)
_MULTIPLIER_MAX: Final = 2.0**20


def fit(status: ScopeStatus, draft: DraftIn) -> Line:
    """The line of `draft` with the least noise that fits into what remains of its scope.

    Raises:
        BudgetExceeded: nothing is left, or less than `draft.units`.
        UnsupportedMechanism: no noise fits, or the accountant for this line is not there.
    """
    scope, left = status.scope, status.remaining
    units = left if draft.units is None else draft.units
    if left < 1 or units > left:
        raise BudgetExceeded(max(1, units), status.spent.main, status.caps.main, scope.main_unit)
    match draft.line:
        case CounterDraft() as counter:
            parameters = CounterParameters(q=1, **counter.model_dump(exclude={"kind"}, exclude_unset=True))
            return CounterLine(fit_counter(parameters, scope, _mu2_units(scope, units)))
        case GaussianDraft() as gaussian:
            return _gaussian(scope, gaussian, units)
        case TrainingDraft() as training:
            return _training(status, training, units)


def _mu2_units(scope: Scope, units: int) -> int:
    """Nano-mu2 whose cost is at most `units` of the scope's own unit."""
    if scope.renyi_order is None:
        return units
    return int(Fraction(2 * units) / Fraction(scope.renyi_order))


def _gaussian(scope: Scope, draft: GaussianDraft, units: int) -> Line:
    mu = Fraction(mu_of_units(_mu2_units(scope, units)))
    sensitivity = exact("line.sensitivity", draft.sensitivity)
    # squares instead of a root: sigma^2 >= releases * sensitivity^2 / mu^2, rounded up twice
    square = Fraction(draft.releases) * sensitivity * sensitivity / (mu * mu)
    ratio = _DIGITS.divide(Decimal(square.numerator), Decimal(square.denominator))
    sigma = _DIGITS.next_plus(_DIGITS.sqrt(ratio))
    return GaussianLine(sensitivity=str(draft.sensitivity), sigma=_text(sigma), releases=draft.releases)


def _training(status: ScopeStatus, draft: TrainingDraft, units: int) -> Line:
    scope, described = status.scope, draft.model_dump(exclude={"kind"}, exclude_unset=True)
    left = Cost(units, status.caps.epsilon - status.spent.epsilon, status.caps.delta - status.spent.delta)

    def line(sigma: float) -> TrainingLine:
        return TrainingLine(noise_multiplier=_text(_DIGITS.create_decimal_from_float(sigma)), **described)

    try:
        return line(_least(lambda sigma: _fits(scope, line(sigma), left)))
    except (ImportError, AttributeError):
        raise UnsupportedMechanism("this installation has no accountant for training lines") from None


def _fits(scope: Scope, line: Line, left: Cost) -> bool:
    try:
        price = cost(scope, ChargeRequest(scope.name, scope.unit, scope.adjacency, line))
    except InvalidParameter as error:
        if error.field != "charge.line":
            raise
        return False  # a loss beyond every cap
    return price.main <= left.main and price.epsilon <= left.epsilon and price.delta <= left.delta


def _least(fits: Callable[[float], bool]) -> float:
    """The smallest multiplier at which a falling price fits, at most a relative 2^-10 above it."""
    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > _MULTIPLIER_MAX:
            raise UnsupportedMechanism(f"no noise multiplier up to {_MULTIPLIER_MAX:g} fits what is left")
    low = high / 2.0
    while fits(low):
        low, high = low / 2.0, low
        if high < 1.0 / _MULTIPLIER_MAX:
            raise InvalidParameter("line", "a run of next to no loss", "a run that needs noise to fit")
    while high > low * (1.0 + 2.0**-10):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _text(value: Decimal) -> str:
    return format(value.normalize(), "f")
