"""What a stream guarantees, in one sentence made of its public header."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

from evertally.pipelines.releases import StreamHeader

__all__ = ["guarantee_sentence", "six_digits"]

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
        f"Gaussian mechanism of mu = {six_digits(header.mu)}, {header.mechanism}, "
        f"noise sigma = {header.sigma:.6g}; privacy unit: {header.unit}, adjacency: {header.adjacency}."
    )
    selection = header.selection
    if selection is None:
        return stated
    return (
        f"{stated} Which keys are shown is selected from the data, at a charge of its own: "
        f"{_pair(selection.epsilon, header.delta)} (mu = {six_digits(selection.mu)}). Selection and totals "
        f"together: {_pair(selection.together_epsilon, header.delta)} (mu = "
        f"{six_digits(selection.together_mu)}), the root of the sum of squares."
    )


def _pair(epsilon: float, delta: float) -> str:
    return f"epsilon = {six_digits(epsilon)} at delta = {six_digits(delta)}"


def six_digits(value: float, rounding: str = ROUND_CEILING) -> str:
    """A number to six significant digits; an upper bound is rounded up, or it would be none.

    >>> six_digits(0.23669271), six_digits(1.0), six_digits(1e-06)
    ('0.236693', '1', '1e-06')
    """
    return f"{float(Context(prec=6, rounding=rounding).plus(Decimal(repr(float(value))))):.6g}"


def _unit(header: StreamHeader) -> str:
    values = f"value in [{header.lower}, {header.clip}]"
    if header.unit == "event":
        return f"one event ({values})"
    events = "1 event" if header.per_tick == 1 else f"{header.per_tick} events"
    return (
        f"all events of one {header.unit} (counted in at most {header.participations} ticks, at least "
        f"{header.min_separation} apart, at most {events} in each, {values})"
    )
