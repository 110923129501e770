"""Options that name a mechanism to account for: shared by `evertally account` and `evertally calibrate`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from evertally.errors import InvalidParameter
from evertally.pipelines.guarantee import rounded_down, rounded_up

if TYPE_CHECKING:
    from evertally.accountants import Bound
    from evertally.accountants.bound import Source
    from evertally.accountants.participation import Participation
    from evertally.accountants.strategies import Strategy

__all__ = [
    "Bands",
    "Batches",
    "BoundNames",
    "BufferDecays",
    "Cycle",
    "Direction",
    "DirectionName",
    "Epochs",
    "Normalize",
    "OutputScales",
    "ParticipationName",
    "PlotFile",
    "SamplingProbability",
    "Scheme",
    "StrategyChoice",
    "StrategyName",
    "bound_fields",
    "bound_names",
    "participation_of",
    "rendered",
    "strategy_of",
]


class StrategyName(enum.StrEnum):
    """Strategies by their short names."""

    IDENTITY = "identity"
    BSR = "bsr"
    BISR = "bisr"
    BAND_MF = "band-mf"
    BAND_INVERSE_MF = "band-inverse-mf"
    BLT = "blt"


class ParticipationName(enum.StrEnum):
    """Participations by their short names."""

    BALLS_IN_BINS = "balls-in-bins"
    EACH_EPOCH_ONCE = "each-epoch-once"
    POISSON = "poisson"
    CYCLIC_POISSON = "cyclic-poisson"


class DirectionName(enum.StrEnum):
    """Which neighbour is which."""

    BOTH = "both"
    REMOVE = "remove"
    ADD = "add"


StrategyChoice = Annotated[
    StrategyName, typer.Option("--strategy", help="Matrix C that correlates the noise.")
]
Scheme = Annotated[
    ParticipationName,
    typer.Option(
        "--participation",
        help="How a record takes part: one random bin for ever (balls-in-bins), a known row in each epoch "
        "(each-epoch-once), or sampled afresh (poisson, cyclic-poisson). No default: it is a promise.",
    ),
]
Batches = Annotated[int, typer.Option("--batches", help="Rows in an epoch (bins), a public number.")]
Epochs = Annotated[int, typer.Option("--epochs", help="Passes over the data, a public number.")]
Bands = Annotated[
    int, typer.Option("--bands", help="Non-zero diagonals of C (bisr, band-inverse-mf: of its inverse).")
]
OutputScales = Annotated[
    str, typer.Option("--output-scales", help="blt: one number a buffer, comma separated.")
]
BufferDecays = Annotated[
    str, typer.Option("--buffer-decays", help="blt: numbers in [0, 1), comma separated.")
]
Normalize = Annotated[
    bool,
    typer.Option("--normalize-columns", help="Divide each column of C by its norm (recorded in the result)."),
]
SamplingProbability = Annotated[
    float | None,
    typer.Option("--sampling-probability", help="poisson, cyclic-poisson: chance of a record."),
]
Cycle = Annotated[
    int | None, typer.Option("--cycle", help="cyclic-poisson: groups of records, one a row in turn.")
]
BoundNames = Annotated[
    str | None,
    typer.Option(
        "--bounds",
        help="Bounds to take, comma separated: gaussian, renyi, colour, random-allocation, cc. Default: all "
        "that apply but cc, which takes minutes.",
    ),
]
Direction = Annotated[
    DirectionName, typer.Option("--direction", help="Adjacency: both, or one direction alone.")
]
PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", help="PNG file to draw epsilon against sigma into, a line for each bound."),
]


def strategy_of(
    name: StrategyName, bands: int, output_scales: str, buffer_decays: str, normalize_columns: bool
) -> Strategy:
    """The strategy that the options name."""
    from evertally import accountants

    if name is StrategyName.IDENTITY:
        return accountants.Identity()
    if name is StrategyName.BLT:
        scales, decays = _numbers("output-scales", output_scales), _numbers("buffer-decays", buffer_decays)
        return accountants.BLT(scales, decays, normalize_columns)
    if name is StrategyName.BSR:
        return accountants.BandedSquareRoot(bands, normalize_columns)
    if name is StrategyName.BISR:
        return accountants.BandedInverseSquareRoot(bands, normalize_columns)
    if name is StrategyName.BAND_MF:
        return accountants.BandMF(bands, normalize_columns)
    return accountants.BandedInverseMF(bands, normalize_columns)


def participation_of(
    name: ParticipationName, batches: int, epochs: int, probability: float | None, cycle: int | None
) -> Participation:
    """The participation that the options name."""
    from evertally import accountants

    if name is ParticipationName.BALLS_IN_BINS:
        return accountants.BallsInBins(batches, epochs)
    if name is ParticipationName.EACH_EPOCH_ONCE:
        return accountants.EachEpochOnce(batches, epochs)
    if probability is None:
        raise InvalidParameter("sampling-probability", probability, "a number in (0, 1]")
    if name is ParticipationName.POISSON:
        return accountants.Poisson(probability, batches * epochs)
    if cycle is None:
        raise InvalidParameter("cycle", cycle, "the number of groups, >= 1")
    return accountants.CyclicPoisson(probability, batches * epochs, cycle)


def bound_names(text: str | None) -> tuple[Source, ...] | None:
    """The bounds that `--bounds` names; None for the default."""
    if text is None:
        return None
    from evertally.accountants.bound import Source

    known: tuple[Source, ...] = get_args(Source)
    wanted = {name.strip() for name in text.split(",")}
    if not wanted <= set(known):
        raise InvalidParameter("bounds", text, "names from " + ", ".join(known))
    return tuple(name for name in known if name in wanted)


def bound_fields(bound: Bound) -> dict[str, Any]:
    """A bound for --json."""
    return {
        "value": bound.value,
        "source": bound.source,
        "lower": bound.lower,
        "gap": bound.gap,
        "lower_scope": bound.lower_scope,
        "notes": list(bound.notes),
    }


def rendered(title: str, unit: str, bound: Bound, each: dict[Source, float], shown: str) -> str:
    """A table of the result and of every bound by itself."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption="\n".join(bound.notes) or None)
    table.add_column("bound")
    table.add_column(f"{shown} ({unit})", justify="right")
    for source, value in each.items():
        table.add_row(source, rounded_up(value), style="bold" if source == bound.source else None)
    table.add_section()
    table.add_row("published (upper bound)", rounded_up(bound.value))
    table.add_row(f"certified lower bound, {bound.lower_scope}", rounded_down(bound.lower))
    console = Console(width=None if Console().is_terminal else 100, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def _numbers(field: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(field, text, "numbers, comma separated") from None
