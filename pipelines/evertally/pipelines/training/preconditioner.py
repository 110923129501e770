"""Data-free preconditioning: Kronecker-factored coordinates from public probes at the present parameters.

The transform is a function of the parameters (which were released), a public seed and constants. It reads
neither the private batch nor its size, so adaptive composition, and the matrix mechanism with noise in
the update's coordinates, cover it without charge.

Reference: arXiv 2605.13418, Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import torch
from torch import Tensor, nn

from evertally.errors import IntegrityError
from evertally.pipelines.training.factors import Factors, FactorSums
from evertally.pipelines.training.factors_roots import Damping, inverse_root
from evertally.pipelines.training.ghost_determinism import deterministic
from evertally.pipelines.training.interfaces import Loss, MicroBatch, Probe
from evertally.pipelines.training.layers import Kind, Layer, inventory
from evertally.pipelines.training.preconditioner_scale import median_norm, moved
from evertally.pipelines.training.preconditioner_state import pack, unpack
from evertally.pipelines.training.preconditioner_transforms import Elementwise, Kronecker, Transform
from evertally.pipelines.training.probes_text import TokenProbe
from evertally.pipelines.training.taps import record
from evertally.validation import one_of, positive_integer, positive_real

__all__ = ["IdentityPreconditioner", "KroneckerPreconditioner"]

_MODES: Final = ("relative", "paper")
_PAPER_DAMPING: Final = 1e-2
"""Both pi, inside the factors, and gamma, before the root; the paper's typical value."""


class IdentityPreconditioner:
    """No transform: plain DP-SGD."""

    _IDENTITY: Final = Kronecker()

    def refresh(self, model: nn.Module, step: int) -> None:
        """Nothing to do."""

    def transform(self, layer: str) -> Transform:  # noqa: ARG002 - every layer has the same one
        """The identity."""
        return self._IDENTITY

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Nothing; a state that holds something is refused."""
        if state:
            raise IntegrityError("the checkpoint holds a preconditioner's state and this run has none")

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {"preconditioner": "none"}


class KroneckerPreconditioner:
    """DP-KFC's transform of each layer, refreshed from public probes.

    Guarantees:
        - a function of (parameters, probe, constants): bit-identical whatever the private data are
          (tests/training/test_preconditioner.py).
        - in mode `relative`, unchanged when inputs or losses are rescaled (same file).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        probe: Probe,
        *,
        mode: str = "relative",
        gamma: float | None = None,
        probes: int = 512,
        micro_batch: int = 64,
        dense_max: int = 4096,
    ) -> None:
        """Fix the public constants; call `refresh` before the first step.

        Args:
            model: must have the layers that `layers.inventory` supports.
            loss: per-example losses, as in training.
            probe: public inputs and targets.
            mode: "relative" (factors divided by their mean eigenvalue, every layer transformed, median probe
                norm 1) or "paper" (absolute damping 1e-2 twice, Linear and Conv2d only, no scaling).
            gamma: damping; 0.5 in mode "relative" and 1e-2 in mode "paper" where None.
            probes: M, probes of a refresh; a constant, never a batch's size.
            micro_batch: probes evaluated together.
            dense_max: a factor of more rows keeps its diagonal only (stated by `describe`).
        """
        self._layers: Final = inventory(model)
        self._loss, self._probe = loss, probe
        self._mode: Final = one_of("mode", mode, _MODES)
        relative = self._mode == "relative"
        default = 0.5 if relative else _PAPER_DAMPING
        self._gamma: Final = positive_real("gamma", default if gamma is None else gamma)
        self._damping: Final = Damping(self._gamma + (0.0 if relative else _PAPER_DAMPING), relative)
        self._probes: Final = positive_integer("probes", probes)
        self._micro_batch: Final = positive_integer("micro_batch", micro_batch)
        self._dense_max: Final = positive_integer("dense_max", dense_max)
        self._transforms: dict[str, Transform] = {}
        self._metrics: dict[str, float] = {}

    def refresh(self, model: nn.Module, step: int) -> None:
        """Recompute every layer's transform from the probes of `step`."""
        with deterministic(torch.float64):
            self._refresh(model, step)

    def transform(self, layer: str) -> Transform:
        """The layer's transform; the same object until the next refresh."""
        if not self._transforms:
            raise IntegrityError("the preconditioner was never refreshed")
        return self._transforms[layer]

    def state_dict(self) -> dict[str, Tensor]:
        """Transforms and figures of the last refresh; empty before the first."""
        return pack(self._transforms, self._metrics)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; raises IntegrityError where it does not fit the model."""
        self._transforms, self._metrics = unpack(state, self._layers)

    def metrics(self) -> dict[str, float]:
        """Public figures: `condition_a/LAYER`, `condition_g/LAYER`, `smallest_*`, `probe_norm`, `scale`."""
        return dict(self._metrics)

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {
            "preconditioner": "kronecker",
            "mode": self._mode,
            "gamma": self._gamma,
            "probes": self._probes,
            "micro_batch": self._micro_batch,
            "diagonal_factors": [
                f"{layer.name}/{side}"
                for layer in self._layers
                for side, size in zip("ga", layer.shape, strict=True)
                if size > self._dense_max and layer.kind in (Kind.LINEAR, Kind.CONV2D)
            ],
            "probe": self._probe.describe(),
        }

    def _refresh(self, model: nn.Module, step: int) -> None:
        batches = [moved(batch, model) for batch in self._batches(step)]
        sums: dict[str, FactorSums] = {}
        for batch in batches:
            taps = record(model, self._layers, self._loss, batch)
            for layer in self._layers:
                if layer.name not in sums:
                    frequencies = self._frequencies(layer, batch, [tap.entered for tap in taps[layer.name]])
                    sums[layer.name] = FactorSums(layer, dense_max=self._dense_max, frequencies=frequencies)
                sums[layer.name].add(taps[layer.name])
        metrics = {"refreshes": self._metrics.get("refreshes", 0.0) + 1.0, "identity_factors": 0.0}
        transforms = {
            layer.name: self._transform_of(layer, sums[layer.name].factors(), metrics)
            for layer in self._layers
        }
        norm = median_norm(model, self._layers, self._loss, batches, transforms)
        metrics["probe_norm"] = norm
        scale = 1.0 / norm if self._mode == "relative" and 0.0 < norm < float("inf") else 1.0
        metrics["scale"] = scale
        self._transforms = {name: transform.scaled(scale) for name, transform in transforms.items()}
        self._metrics = metrics

    def _batches(self, step: int) -> list[MicroBatch]:
        return [
            self._probe.batch(step, first, min(self._micro_batch, self._probes - first))
            for first in range(0, self._probes, self._micro_batch)
        ]

    def _frequencies(self, layer: Layer, batch: MicroBatch, entered: list[Tensor]) -> Tensor | None:
        """Closed-form token frequencies for an Embedding that reads the probe's tokens and nothing else."""
        if layer.kind is not Kind.EMBEDDING or not isinstance(self._probe, TokenProbe):
            return None
        tokens = batch.inputs[0]
        reads = len(entered) == 1 and torch.equal(entered[0], tokens)
        size = cast(nn.Embedding, layer.module).num_embeddings
        if not reads or size != self._probe.vocabulary:
            return None
        return torch.from_numpy(self._probe.token_frequencies())

    def _transform_of(self, layer: Layer, factors: Factors, metrics: dict[str, float]) -> Transform:
        if self._mode == "paper" and layer.kind not in (Kind.LINEAR, Kind.CONV2D):
            return Kronecker()
        if factors.squares is not None:
            found = inverse_root(factors.squares.reshape(-1), self._damping)
            metrics[f"condition_g/{layer.name}"] = found.condition
            metrics["identity_factors"] += found.root is None
            return Kronecker() if found.root is None else Elementwise(found.root.reshape(layer.shape))
        roots = []
        for side, factor in (("g", factors.left), ("a", factors.right)):
            assert factor is not None
            found = inverse_root(factor, self._damping)
            metrics[f"condition_{side}/{layer.name}"] = found.condition
            metrics[f"smallest_{side}/{layer.name}"] = found.smallest
            metrics["identity_factors"] += found.root is None
            roots.append(found)
        return Kronecker(roots[0].root, roots[1].root, spectrum=roots[1].spectrum)
