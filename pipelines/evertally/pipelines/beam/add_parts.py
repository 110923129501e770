"""The sum of parts as a Beam combiner: a hot key costs one number in each bundle, whatever it counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apache_beam import CombineFn
from apache_beam.coders import BytesCoder

from evertally.pipelines.beam.parts import merge
from evertally.pipelines.beam.stream_ref import AggregationRef, StreamRef, opened

__all__ = ["AddParts"]

_Accumulator = bytes


class AddParts(CombineFn):
    """Merges sealed parts of one tick and destination; what the runner keeps meanwhile is sealed as well.

    An accumulator is the concatenation-free form that runners move between machines: one sealed part, or
    b"" for nothing yet.
    """

    def __init__(self, ref: StreamRef | AggregationRef) -> None:
        self._ref = ref

    def create_accumulator(self) -> _Accumulator:
        """Nothing yet."""
        return b""

    def add_input(self, accumulator: _Accumulator, element: bytes) -> _Accumulator:
        """One more sealed part."""
        return self.merge_accumulators([accumulator, element])

    def add_inputs(self, accumulator: _Accumulator, elements: Iterable[bytes]) -> _Accumulator:
        """Many parts at once."""
        return self.merge_accumulators([accumulator, *elements])

    def merge_accumulators(self, accumulators: Iterable[_Accumulator]) -> _Accumulator:
        """One accumulator out of many."""
        given = [sealed for sealed in accumulators if sealed]
        if len(given) < 2:
            return given[0] if given else b""
        sealer = opened(self._ref).sealer
        return sealer.seal(merge(map(sealer.open, given)))

    def extract_output(self, accumulator: _Accumulator) -> bytes:
        """The sealed sum."""
        return accumulator

    def get_accumulator_coder(self) -> Any:
        """Sealed bytes as they are."""
        return BytesCoder()
