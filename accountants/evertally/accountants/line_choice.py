"""Which lines bound the Renyi moments of a strategy: the bands that a budget affords, and the colourings."""

from __future__ import annotations

from functools import lru_cache

from evertally.accountants.banded_moments import flush_order_max, sweep_operations
from evertally.accountants.bound import Direction
from evertally.accountants.gram import DENSE_BATCHES_MAX, Gram
from evertally.accountants.renyi_lines import (
    AllocationAddLine,
    BandLine,
    ClosedAddLine,
    Colouring,
    ColourLine,
    DirectLine,
    EnumeratedLine,
    GaussianLine,
    Line,
)
from evertally.accountants.truncation import Band, band_of

__all__ = ["lines"]

_WIDTHS = (2, 3, 4, 6, 8, 12, 16)
_REACH_MIN = 6
_SWEEP_ORDER_MAX = 256
_FEW_BATCHES = 12


@lru_cache(maxsize=64)
def lines(gram: Gram, direction: Direction, operations: float) -> tuple[Line, ...]:
    """Every line that applies, the Gaussian first; the choice depends on `gram` and `operations` alone."""
    found: list[Line] = [GaussianLine(gram.maximum)]
    if gram.batches == 1:
        return tuple(found)
    if direction == "add":
        if gram.is_identity:
            return (*found, AllocationAddLine(gram.batches, gram.maximum))
        found.append(ClosedAddLine(float(gram.diagonal.mean()), float(gram.entries.mean())))
        return (*found, *(ColourLine(c, gram.batches, "add") for c in _colourings(gram)))
    bands = [BandLine(band, _reach(band, operations)) for band in _bands(gram)]
    affordable = [line for line in bands if line.reach >= _REACH_MIN or line.band.diagonals.shape[1] == 1]
    found.extend(affordable)
    if gram.is_identity:
        return tuple(found)
    exact = any(line.band.residue == 0.0 for line in affordable)
    if gram.batches <= DENSE_BATCHES_MAX and not exact:
        found.append(DirectLine(gram, 2 if gram.batches > 512 else (3 if gram.batches > 128 else 4)))
    if gram.batches <= _FEW_BATCHES:
        found.append(EnumeratedLine(gram))
    found.extend(ColourLine(c, gram.batches, "remove") for c in _colourings(gram))
    return tuple(found)


def _reach(band: Band, operations: float) -> int:
    """Largest order that a sweep of this band affords."""
    batches, width = band.diagonals.shape
    if width == 1:
        return 2**20
    top = min(_SWEEP_ORDER_MAX, flush_order_max(batches))
    order = 2
    while order < top and sweep_operations(batches, width, order + 1, cyclic=band.cyclic) <= operations:
        order += 1
    return order


def _bands(gram: Gram) -> list[Band]:
    """Bands worth trying, the narrowest first: the last one leaves nothing out where it is narrow enough."""
    cyclic = gram.epochs > 1 or (gram.is_circulant and not gram.is_identity)
    most = (gram.batches + 1) // 2 if cyclic else gram.batches
    found = [band_of(gram, 1, cyclic=cyclic)]
    for width in range(2, min(most, _WIDTHS[-1]) + 1):
        if found[-1].residue == 0.0:
            break
        band = band_of(gram, width, cyclic=cyclic)
        if width in _WIDTHS or band.residue == 0.0:
            found.append(band)
    return found


@lru_cache(maxsize=32)
def _colourings(gram: Gram) -> tuple[Colouring, ...]:
    """Few colours, or as many as the band is wide, moved to a near divisor."""
    batches = gram.batches
    wanted = (1, 2, 4, 8, 16, 32, _bands(gram)[-1].diagonals.shape[1])
    return tuple(_colouring(gram, colours) for colours in sorted({_near_divisor(batches, w) for w in wanted}))


def _near_divisor(batches: int, colours: int) -> int:
    return next((c for c in range(colours, 2 * colours + 1) if batches % c == 0), min(colours, batches))


def _colouring(gram: Gram, colours: int) -> Colouring:
    """Classes of one size share their largest entries: fewer integrals, and entries may only rise."""
    by_size: dict[int, list[tuple[float, float]]] = {}
    for size, peak, residue in gram.classes(colours):
        by_size.setdefault(size, []).append((peak, residue))
    return tuple(
        (size * len(found), size, max(peak for peak, _ in found), max(residue for _, residue in found))
        for size, found in by_size.items()
    )
