"""What a run is made of, from its configuration: model, loss, coordinates, clipped sums, optimiser."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from evertally.accountants.participation import BallsInBins
from evertally.accountants.strategies import Strategy
from evertally.errors import InvalidParameter
from evertally.pipelines.training.baselines import AdaptiveDiagonal
from evertally.pipelines.training.config import TrainConfig
from evertally.pipelines.training.examples import ExampleForm
from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.ghost_contributions import Arithmetic
from evertally.pipelines.training.interfaces import (
    ClippedSummer,
    Loss,
    MicroBatch,
    Preconditioner,
    PrivateOptimizer,
    Probe,
)
from evertally.pipelines.training.losses import CrossEntropy, MeanSquaredError
from evertally.pipelines.training.optimizers import Disk, DpAdamBC, Momentum
from evertally.pipelines.training.plan import Plan, make_plan
from evertally.pipelines.training.preconditioner import IdentityPreconditioner, KroneckerPreconditioner
from evertally.pipelines.training.preconditioner_scale import moved
from evertally.pipelines.training.probes import NormalTargets, PinkNoise, Targets, UniformLabels
from evertally.pipelines.training.probes_public import PublicFolder
from evertally.pipelines.training.probes_stream import PublicStream
from evertally.pipelines.training.probes_text import TokenProbe, ZipfDocuments
from evertally.pipelines.training.run_models import build_model
from evertally.pipelines.training.taps import evaluation_mode
from evertally.pipelines.training.taps_check import check_model, state_of

__all__ = [
    "Components",
    "build_components",
    "build_optimiser",
    "build_plan",
    "constants_digest",
    "decoded_noise",
    "parameters_digest",
]

_CHECKED: Final = 8


@dataclass(frozen=True, slots=True)
class Components:
    """The mathematics of a run.

    Attributes:
        model: on its device.
        summer: clipped sums.
        preconditioner: its coordinates; the identity for plain DP-SGD.
        device: of the model.
    """

    model: nn.Module
    summer: ClippedSummer
    preconditioner: Preconditioner
    device: torch.device


class _Coordinates(Preconditioner, Protocol):
    def transform(self, layer: str) -> Any: ...


def build_components(config: TrainConfig, device: str) -> Components:
    """Build model, coordinates and summer; unsound layers are refused here, by name.

    What a list of layers does not show (a weight used outside its layer, examples that read each other) is
    looked for on a few public inputs of the declared form.

    Raises:
        InvalidParameter: a device that is not there, a model or a probe that does not fit the data.
        UnsupportedMechanism: a layer, or a use of it, whose clipped sum would be unsound.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidParameter("--device", device, "a CUDA device, or cpu")
    place = torch.device(device)
    form = config.data.form
    model = build_model(config.model, form, config.seed).to(place)
    loss: Loss = CrossEntropy() if form.classes else MeanSquaredError()
    probes = moved(_of_form(form, config.seed), model)
    _check_outputs(model, probes, form)
    check_model(model, loss, probes)
    coordinates = _coordinates(config, model, loss)
    mechanism = config.mechanism
    dtype = torch.float64 if mechanism.arithmetic == "float64" else torch.float32
    summer = GhostClipper(
        model,
        loss,
        coordinates,
        clip_norm=mechanism.clip,
        arithmetic=Arithmetic(dtype=dtype),
        autocast=torch.bfloat16 if mechanism.bf16 else None,
    )
    return Components(model, summer, coordinates, place)


def build_plan(config: TrainConfig, parts: Components, noise_multiplier: float | None = None) -> Plan:
    """The plan of a run; `noise_multiplier` stands in for a loss that spends what remains."""
    from evertally.pipelines.training.plan import TrainingLoss  # noqa: PLC0415 - only for the stand-in

    mechanism, loss = config.mechanism, config.privacy.loss
    elements = sum(math.prod(shape.shape) for shape in parts.summer.parameters)
    return make_plan(
        mechanism.strategy,
        mechanism.participation,
        loss or TrainingLoss(noise_multiplier),
        clip=mechanism.clip,
        sensitivity=parts.summer.sensitivity,
        elements=elements,
        units_max=mechanism.units_max,
        divisor=mechanism.divisor,
        constants=_constants(config, parts),
        own_delta=config.privacy.own_delta,
    )


def build_optimiser(config: TrainConfig, parts: Components, plan: Plan) -> PrivateOptimizer:
    """The optimiser of noisy gradients."""
    wanted = config.optimiser
    match wanted.kind:
        case "adambc":
            return DpAdamBC(
                parts.model,
                rate=wanted.rate,
                noise_std=decoded_noise(plan) / plan.divisor,
                floor=wanted.floor,
            )
        case "disk":
            return Disk(parts.model, rate=wanted.rate, gain=wanted.gain)
        case _:
            return Momentum(parts.model, rate=wanted.rate, momentum=wanted.momentum)


def decoded_noise(plan: Plan) -> float:
    """Standard deviation of the noise in a decoded sum's coordinate, in the last row: the largest one."""
    return plan.grid.noise_sd * _inverse_norm(plan.strategy, plan.participation)


def _inverse_norm(strategy: Strategy, participation: BallsInBins) -> float:
    """Norm of the last row of C^-1."""
    column = strategy.matrix_first_column(participation)  # type: ignore[attr-defined]  # every strategy here has it
    inverse = np.zeros(min(participation.rows, 4096))
    inverse[0] = 1.0
    for n in range(1, inverse.size):
        inverse[n] = -float(column[1 : n + 1] @ inverse[:n][::-1])
    return float(np.linalg.norm(inverse))


def _coordinates(config: TrainConfig, model: nn.Module, loss: Loss) -> _Coordinates:
    wanted, form = config.probe, config.data.form
    if wanted.transform == "none":
        return IdentityPreconditioner()
    probe = _probe(config, form)
    if wanted.transform == "diagonal":
        return AdaptiveDiagonal(model, loss, probe, gamma=wanted.gamma or 0.5, probes=wanted.count)
    return KroneckerPreconditioner(
        model, loss, probe, mode=wanted.transform, gamma=wanted.gamma, probes=wanted.count
    )


def _probe(config: TrainConfig, form: ExampleForm) -> Probe:
    wanted = config.probe
    seed, targets = _probe_seed(config.seed), _targets(form)
    match wanted.kind:
        case "pink" | "white" if not form.tokens:
            alpha = 0.0 if wanted.kind == "white" else wanted.alpha
            return PinkNoise(seed, form.shape, targets, alpha=alpha, brightness=wanted.brightness)
        case "zipf" | "uniform" if form.tokens:
            return TokenProbe(
                seed,
                form.tokens,
                math.prod(form.shape),
                targets,
                low=wanted.low,
                law=wanted.kind,
                exponent=wanted.alpha,
                first_token=wanted.first_token,
                last_token=wanted.last_token,
                mask=False,
            )
        case "zipf-documents" if not form.tokens and len(form.shape) == 1:
            return ZipfDocuments(seed, form.shape[0], targets, exponent=wanted.alpha)
        case "public":
            assert wanted.folder is not None
            folder = PublicFolder(wanted.folder, seed, targets)
            folder.check_form(form.shape, tokens=form.tokens, classes=form.classes)
            return folder
    raise InvalidParameter("preconditioner.probe", wanted.kind, "a probe of the data's form")


def _probe_seed(seed: int) -> bytes:
    return hashlib.sha256(b"evertally/1/probe-seed" + seed.to_bytes(8, "big")).digest()


def _targets(form: ExampleForm) -> Targets:
    return UniformLabels(form.classes) if form.classes else NormalTargets(())


def _of_form(form: ExampleForm, seed: int) -> MicroBatch:
    """A few public inputs of the declared form, whatever the probes are: white, or uniform tokens.

    Sequences of tokens end at lengths in no order, with 0 behind them, and the first holds the last token: a
    model that sorts by length, or has too few words, shows it.
    """
    public, size = _probe_seed(seed), math.prod(form.shape)
    streams = [PublicStream(public, "check", 0, i) for i in range(_CHECKED)]
    drawn = [s.integers(0, form.tokens, size) if form.tokens else s.normal(size) for s in streams]
    features = np.array(drawn, form.feature_type)
    if form.tokens:
        for row in range(_CHECKED):
            length = max(1, size * (_CHECKED - 3 * row % _CHECKED) // _CHECKED)
            features[row, length:] = 0
        features[0, 0] = form.tokens - 1
    inputs = torch.from_numpy(features.reshape(_CHECKED, *form.shape))
    return MicroBatch((inputs,), _targets(form).draw(public, 0, 0, _CHECKED))


def _check_outputs(model: nn.Module, probes: MicroBatch, form: ExampleForm) -> None:
    """A model that does not fit the declared form is found on public inputs, before any charge."""
    try:
        with evaluation_mode(model), torch.no_grad():
            outputs = model(*probes.inputs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise InvalidParameter(
            "model", f"{type(error).__name__} on public inputs", f"a model of inputs of shape {form.shape}"
        ) from error
    if form.classes and outputs.shape[-1] < form.classes:
        raise InvalidParameter("model", f"{outputs.shape[-1]} outputs", f"{form.classes}, one a class")


def _constants(config: TrainConfig, parts: Components) -> dict[str, Any]:
    """Everything else that fixes a run; floats as text."""
    model = config.model
    init = "" if model.init is None else hashlib.sha256(model.init.read_bytes()).hexdigest()
    optimiser = config.optimiser
    return {
        "run": config.name,
        "seed": config.seed,
        "form": config.data.form.to_json(),
        "records_per_unit": config.data.records_per_unit,
        "model": {"kind": model.kind, "factory": model.factory, "hidden": list(model.hidden), "init": init},
        "parameters": [[shape.name, list(shape.shape)] for shape in parts.summer.parameters],
        "start": parameters_digest(parts.model),
        "preconditioner": _texts(parts.preconditioner.describe()),
        "refresh_steps": config.probe.refresh_steps or config.mechanism.participation.batches,
        "optimiser": {
            "kind": optimiser.kind,
            **{key: repr(getattr(optimiser, key)) for key in ("rate", "momentum", "gain", "floor")},
        },
        "arithmetic": config.mechanism.arithmetic,
        "bf16": config.mechanism.bf16,
        "micro_batch": config.mechanism.micro_batch,
    }


def parameters_digest(model: nn.Module) -> str:
    """SHA-256 over names and bytes of all parameters and buffers, in order."""
    return _digest(model.state_dict())


def constants_digest(model: nn.Module) -> str:
    """SHA-256 over all that training leaves alone: frozen parameters and buffers."""
    return _digest(state_of(model))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name},{tensor.dtype},{tuple(tensor.shape)};".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _texts(value: Any) -> Any:
    """JSON without floats, which have no one text."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    return value
