"""No tensor of batch x parameters is allocated, and temporary memory stays under what was granted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from evertally.pipelines.training.ghost import GhostClipper
from evertally.pipelines.training.ghost_contributions import Arithmetic
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.preconditioner import KroneckerPreconditioner
from evertally.pipelines.training.probes import PinkNoise, UniformLabels

pytestmark = pytest.mark.train

BATCH = 64


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch types it not
    """Bytes of every storage that an operation returns, the largest, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.largest = 0
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.largest = max(self.largest, size)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(392, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def test_no_tensor_of_batch_times_parameters() -> None:
    model = network()
    probe = PinkNoise(bytes(16), (1, 14, 14), UniformLabels(10))
    preconditioner = KroneckerPreconditioner(model, CrossEntropy(), probe, probes=64)
    preconditioner.refresh(model, 0)
    granted = 1 << 19
    clipper = GhostClipper(model, CrossEntropy(), preconditioner, arithmetic=Arithmetic(memory_bytes=granted))
    x, y = torch.randn(BATCH, 1, 14, 14), torch.randint(0, 10, (BATCH,))
    clipper.sum([MicroBatch((x,), y)])  # converts the roots once
    gc.collect()
    with Allocations() as seen:
        clipper.sum([MicroBatch((x,), y)])
    parameters = sum(p.numel() for p in model.parameters())
    smallest_wide_layer = 256 * 257
    assert seen.largest < 4 * BATCH * smallest_wide_layer / 4  # not a quarter of one such layer
    # sums in doubles, their transform and its temporaries, the taps (activations, gradients), the grant
    taps = 4 * BATCH * 2 * (196 + 8 * 49 * 2 + 392 + 256 * 4 + 20)
    assert seen.peak <= 8 * 5 * parameters + taps + 4 * granted
    assert seen.peak < 4 * BATCH * parameters / 4


def test_the_measure_sees_a_materialised_gradient() -> None:
    """The control: what hooks of the usual kind would allocate."""
    with Allocations() as seen:
        d, a = torch.randn(BATCH, 256), torch.randn(BATCH, 257)
        torch.einsum("no,ni->noi", d, a)
    assert seen.largest >= 4 * BATCH * 256 * 257


def test_memory_follows_the_grant() -> None:
    """Long sequences: the Gram matrices of a chunk stay under the cap."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 40), nn.Tanh(), nn.Linear(40, 3))
    from evertally.pipelines.training.ghost_plans import Plan
    from evertally.pipelines.training.preconditioner import IdentityPreconditioner

    x, y = torch.randn(16, 64, 48), torch.randint(0, 3, (16, 64))
    largest = []
    for granted in (1 << 16, 1 << 24):
        clipper = GhostClipper(
            model, CrossEntropy(), IdentityPreconditioner(),
            arithmetic=Arithmetic(memory_bytes=granted, plan=Plan.GRAM),
        )  # fmt: skip
        with Allocations() as seen:
            clipper.sum([MicroBatch((x,), y)])
        largest.append(seen.peak)
    assert largest[0] < largest[1] / 2
