"""What a stream guarantees, in one sentence made of its public header."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from evertally.pipelines.releases import StreamHeader

__all__ = ["guarantee_sentence", "rounded_down", "rounded_up"]

_CHANGES = {
    "add-remove": "adding or removing {unit}",
    "replace-value": "changing the values of {unit}, at the same ticks and keys,",
    "replace": "replacing {unit} by any other",
}


def guarantee_sentence(header: StreamHeader) -> str:
    """Unit, adjacency, epsilon, delta, mu and mechanism of a stream."""
    change = _CHANGES[header.adjacency].format(unit=_unit(header))
    stated = (
        f"Guarantee: {change} changes what is published over all keys and all ticks together, for ever "
        f"(ticks up to {header.slack_horizon}), by at most {_pair(header.epsilon, header.delta)}: one "
        f"Gaussian mechanism of mu = {rounded_up(header.mu)}, {header.mechanism}, "
        f"noise sigma = {header.sigma:.6g}; privacy unit: {header.unit}, adjacency: {header.adjacency}."
    )
    selection = header.selection
    if selection is None:
        return stated
    return (
        f"{stated} Which keys are shown is selected from the data, at a charge of its own: "
        f"{_pair(selection.epsilon, header.delta)} (mu = {rounded_up(selection.mu)}). Selection and totals "
        f"together: {_pair(selection.together_epsilon, header.delta)} (mu = "
        f"{rounded_up(selection.together_mu)}), the root of the sum of squares."
    )


def _pair(epsilon: float, delta: float) -> str:
    return f"epsilon = {rounded_up(epsilon)} at delta = {rounded_up(delta)}"


def rounded_up(value: float, digits: int = 6) -> str:
    """An upper bound in so many significant digits: to the nearest one it would often be none.

    >>> rounded_up(0.23669211), rounded_up(1.0), rounded_up(1e-06)
    ('0.236693', '1', '1e-06')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 6) -> str:
    """A lower bound in so many significant digits.

    >>> rounded_down(0.5265279)
    '0.526527'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    exact = Decimal(repr(float(value)))  # the shortest text: 0.1 is a tenth
    return f"{float(Context(prec=digits, rounding=rounding).plus(exact)):.{digits}g}"


def _unit(header: StreamHeader) -> str:
    values = f"value in [{header.lower}, {header.clip}]"
    if header.unit == "event":
        return f"one event ({values})"
    events = "1 event" if header.per_tick == 1 else f"{header.per_tick} events"
    return (
        f"all events of one {header.unit} (counted in at most {header.participations} ticks, at least "
        f"{header.min_separation} apart, at most {events} in each, {values})"
    )
