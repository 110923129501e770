"""`evertally account`: epsilon at a delta, or delta at an epsilon, of one mechanism."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evertally.errors import InvalidParameter
from evertally.pipelines.cli import mechanism
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

__all__ = ["account"]


def account(
    strategy: mechanism.StrategyChoice,
    participation: mechanism.Scheme,
    noise_multiplier: Annotated[
        float, typer.Option("--noise-multiplier", help="Noise sigma divided by the clip norm.")
    ],
    batches: mechanism.Batches,
    epochs: mechanism.Epochs,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Ask for delta at this epsilon (natural logarithm).")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Ask for epsilon at this delta (a probability).")
    ] = None,
    bands: mechanism.Bands = 4,
    output_scales: mechanism.OutputScales = "",
    buffer_decays: mechanism.BufferDecays = "",
    normalize_columns: mechanism.Normalize = False,
    sampling_probability: mechanism.SamplingProbability = None,
    cycle: mechanism.Cycle = None,
    bounds: mechanism.BoundNames = None,
    direction: mechanism.Direction = mechanism.DirectionName.BOTH,
    plot: mechanism.PlotFile = None,
    as_json: AsJson = False,
    log_format: Logs = LogFormat.TEXT,
) -> None:
    """Account for a mechanism: the least of all proved upper bounds, its source, and a certified lower bound.

    Epsilon is in nats (natural logarithm), delta is a probability, the noise multiplier is sigma divided by
    the clip norm. C is not normalised unless --normalize-columns says so.
    """
    begin(as_json=as_json, log_format=log_format)
    if (epsilon is None) == (delta is None):
        raise InvalidParameter("epsilon, delta", "both" if epsilon is not None else "neither", "exactly one")
    from evertally.accountants import account as accountant

    matrix = mechanism.strategy_of(strategy, bands, output_scales, buffer_decays, normalize_columns)
    scheme = mechanism.participation_of(participation, batches, epochs, sampling_probability, cycle)
    names = mechanism.bound_names(bounds)
    found = accountant(matrix, scheme, noise_multiplier, names, direction.value)
    if delta is not None:
        bound, each, shown, unit = (
            found.epsilon(delta=delta),
            found.each_epsilon(delta=delta),
            "epsilon",
            "nats",
        )
    else:
        assert epsilon is not None
        bound, each = found.delta(epsilon=epsilon), found.each_delta(epsilon=epsilon)
        shown, unit = "delta", "probability"
    fields: dict[str, Any] = {
        "ok": True,
        "strategy": repr(matrix),
        "participation": repr(scheme),
        "noise_multiplier": noise_multiplier,
        shown: mechanism.bound_fields(bound),
        "bounds": each,
    }
    if plot is not None:
        from evertally.pipelines.accountants_figure import draw_epsilon

        at = delta if delta is not None else bound.value
        draw_epsilon(matrix, scheme, at, noise_multiplier, plot, names)
        fields["png"] = str(plot)
    title = f"{matrix}, {scheme}, sigma {noise_multiplier:g}"
    emit(fields, "" if as_json else mechanism.rendered(title, unit, bound, each, shown))
