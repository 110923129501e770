"""Training tests need PyTorch; without it nothing in this folder is collected."""

from __future__ import annotations

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from threads, and other tests want the cores."""
    import torch

    torch.set_num_threads(1)
