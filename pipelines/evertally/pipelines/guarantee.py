"""What a stream guarantees, in one sentence made of its public header."""

from __future__ import annotations

from evertally.pipelines.releases import StreamHeader

__all__ = ["guarantee_sentence"]

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
        f"(ticks up to {header.slack_horizon}), by at most epsilon = {header.epsilon:.6g} at "
        f"delta = {header.delta:.6g}: one Gaussian mechanism of mu = {header.mu:.6g}, {header.mechanism}, "
        f"noise sigma = {header.sigma:.6g}; privacy unit: {header.unit}, adjacency: {header.adjacency}."
    )
    selection = header.selection
    if selection is None:
        return stated
    return (
        f"{stated} Which keys are shown is selected from the data, at a charge of its own: epsilon = "
        f"{selection.epsilon:.6g} at delta = {header.delta:.6g} (mu = {selection.mu:.6g}). Selection and "
        f"totals together: epsilon = {selection.together_epsilon:.6g} at delta = {header.delta:.6g} "
        f"(mu = {selection.together_mu:.6g}), the root of the sum of squares."
    )


def _unit(header: StreamHeader) -> str:
    values = f"value in [{header.lower}, {header.clip}]"
    if header.unit == "event":
        return f"one event ({values})"
    events = "1 event" if header.per_tick == 1 else f"{header.per_tick} events"
    return (
        f"all events of one {header.unit} (counted in at most {header.participations} ticks, at least "
        f"{header.min_separation} apart, at most {events} in each, {values})"
    )
