"""Small modules that a list of their layers does not give away, for runs with `kind = "factory"`."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(torch.tanh(self.second(torch.tanh(self.first(x))))))


class SharedBuffer(nn.Module):
    """One mask under two names, as blocks of attention hold it."""

    def __init__(self) -> None:
        super().__init__()
        mask = torch.ones(FEATURES)
        self.one, self.two, self.head = nn.Identity(), nn.Identity(), nn.Linear(FEATURES, CLASSES)
        self.one.register_buffer("mask", mask)
        self.two.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(x * cast(Tensor, self.one.mask) * cast(Tensor, self.two.mask)))


class Counting(nn.Module):
    """Keeps a sum of its inputs in a buffer, which would be published with the model."""

    def __init__(self, *, from_call: int = 0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.head, self._calls, self._from = nn.Linear(FEATURES, CLASSES), 0, from_call

    def forward(self, x: Tensor) -> Tensor:
        self._calls += 1
        if self._calls > self._from:
            self.mean.data += x.detach().sum(0)  # `.data` moves no version counter
        return cast(Tensor, self.head(x))


class Remembering(nn.Module):
    """Adds what it saw before, held outside of any buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self._before = nn.Linear(FEATURES, CLASSES), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.head(x + 1e-4 * self._before))
        self._before = x.detach().mean()
        return y


class Cumulative(nn.Module):
    """An example reads those before it; the first one reads nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(x + 0.5 * x.cumsum(0)))


class Sorting(nn.Module):
    """Evaluates a layer in another order and puts its outputs back, as models of texts by length do."""

    def __init__(self, *, by_length: bool = False) -> None:
        super().__init__()
        self._by_length = by_length
        self.words = nn.Embedding(20, FEATURES, padding_idx=0)
        self.inner, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        order = (x != 0).sum(1).argsort(stable=True) if self._by_length else x[:, 0].argsort()
        if self._by_length:
            x = self.words(x).mean(1)
        inner = torch.tanh(self.inner(x[order]))
        return cast(Tensor, self.head(inner[order.argsort()]))


class Masking(nn.Module):
    """Functional dropout, which is on in evaluation too, and rarely hits anything."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(nn.functional.dropout(x, 1e-6)))


class ByName(nn.Module):
    """Calls a layer with a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(input=x))


def shared() -> nn.Module:
    return Shared()


def shared_buffer() -> nn.Module:
    return SharedBuffer()


def double() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES)).double()


def counting_later() -> nn.Module:
    """Passes every look at public inputs and begins with the second step's private ones."""
    return Counting(from_call=33)


def few() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES - 1)


def adapted() -> nn.Module:
    """An adapter that hangs on a Linear of the exact type."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES))
    model[0].register_parameter("lora", nn.Parameter(torch.zeros(FEATURES, 2)))
    return model


def unseeded() -> nn.Module:
    """Starts from a generator that no seed of the run decides."""
    model = nn.Linear(FEATURES, CLASSES)
    nn.init.constant_(model.weight, float(np.random.default_rng().normal()))
    return model
