"""`evertally calibrate`: the noise that a target epsilon and delta need."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evertally.pipelines.cli import mechanism
from evertally.pipelines.cli.output import AsJson, LogFormat, Logs, begin, emit

__all__ = ["calibrate"]


def calibrate(
    strategy: mechanism.StrategyChoice,
    participation: mechanism.Scheme,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Target epsilon > 0 (natural logarithm).")],
    delta: Annotated[float, typer.Option("--delta", help="Target delta, a probability in (0, 1).")],
    batches: mechanism.Batches,
    epochs: mechanism.Epochs,
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
    """Find the least noise multiplier (sigma over the clip norm) that gives epsilon (nats) at delta.

    The value was evaluated and meets the target, and is printed rounded up; the certified lower bound is a
    noise multiplier that no accountant can bring under it.
    """
    begin(as_json=as_json, log_format=log_format)
    from evertally.accountants import account, calibrate_noise_multiplier

    matrix = mechanism.strategy_of(strategy, bands, output_scales, buffer_decays, normalize_columns)
    scheme = mechanism.participation_of(participation, batches, epochs, sampling_probability, cycle)
    names = mechanism.bound_names(bounds)
    bound = calibrate_noise_multiplier(
        matrix, scheme, epsilon=epsilon, delta=delta, bounds=names, direction=direction.value
    )
    offered = tuple(account(matrix, scheme, bound.value, names, direction.value).each_delta(epsilon=epsilon))
    each = {
        name: calibrate_noise_multiplier(
            matrix, scheme, epsilon=epsilon, delta=delta, bounds={name}, direction=direction.value
        ).value
        for name in offered
    }
    fields: dict[str, Any] = {
        "ok": True,
        "strategy": repr(matrix),
        "participation": repr(scheme),
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": mechanism.bound_fields(bound),
        "bounds": each,
    }
    if plot is not None:
        from evertally.pipelines.accountants_figure import draw_epsilon

        draw_epsilon(matrix, scheme, delta, bound.value, plot, names)
        fields["png"] = str(plot)
    title = f"{matrix}, {scheme}, epsilon {epsilon:g}, delta {delta:g}"
    emit(fields, "" if as_json else mechanism.rendered(title, "sigma / clip norm", bound, each, "noise"))
