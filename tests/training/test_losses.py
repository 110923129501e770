"""Losses are per example, and what is ignored counts for nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from evertally.errors import InvalidParameter
from evertally.pipelines.training.losses import CrossEntropy, MeanSquaredError

pytestmark = pytest.mark.train


def test_cross_entropy_of_single_labels() -> None:
    logits, labels = torch.randn(5, 4), torch.randint(0, 4, (5,))
    found = CrossEntropy().per_example(logits, labels)
    assert torch.allclose(found, functional.cross_entropy(logits, labels, reduction="none"))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_masked_sequences_reduce_over_their_own_positions(reduction: str) -> None:
    """A mean over all positions, padding included, would dilute short sequences."""
    logits, labels = torch.randn(4, 6, 5), torch.randint(0, 5, (4, 6))
    labels[0, 2:] = -100
    labels[1, :] = -100
    found = CrossEntropy(reduction=reduction).per_example(logits, labels)
    for i in (0, 2, 3):
        own = labels[i] != -100
        expected = functional.cross_entropy(logits[i][own], labels[i][own], reduction=reduction)
        assert float(found[i]) == pytest.approx(float(expected), rel=1e-6)
    assert float(found[1]) == 0.0


def test_other_ignore_index() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 0, 0], [2, 3, 0]])
    found = CrossEntropy(ignore_index=0).per_example(logits, labels)
    assert float(found[0]) == pytest.approx(float(functional.cross_entropy(logits[0, :1], labels[0, :1])))


def test_squared_error() -> None:
    outputs, targets = torch.randn(4, 3), torch.randn(4, 3)
    squares = torch.square(outputs - targets)
    assert torch.allclose(MeanSquaredError().per_example(outputs, targets), squares.mean(1))
    assert torch.allclose(MeanSquaredError("sum").per_example(outputs, targets), squares.sum(1))


def test_shapes_and_reductions_are_checked() -> None:
    with pytest.raises(InvalidParameter, match="targets"):
        CrossEntropy().per_example(torch.randn(4, 3), torch.zeros(4, 3))
    with pytest.raises(InvalidParameter, match="targets"):
        MeanSquaredError().per_example(torch.randn(4, 1), torch.zeros(4))
    for make in (CrossEntropy, MeanSquaredError):
        with pytest.raises(InvalidParameter, match="reduction"):
            make(reduction="batchmean")
