"""The same inputs give the same bits: what torch does otherwise is switched off while a sum is formed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic as deterministic_utils

__all__ = ["deterministic"]


@contextmanager
def deterministic(dtype: torch.dtype) -> Iterator[None]:
    """No atomics whose order changes a sum, and no TF32 in a norm; both restored afterwards.

    A replayed step must give the same bits: the same noise over another sum would reveal the difference.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = deterministic_utils.fill_uninitialized_memory  # type: ignore[attr-defined] # as below
    tf32 = torch.backends.cuda.matmul.allow_tf32
    # the public switch also imports torch's compiler: seconds, for nothing here
    torch._C._set_deterministic_algorithms(True)
    deterministic_utils.fill_uninitialized_memory = False  # type: ignore[attr-defined] # set by a module class
    if dtype is torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warn_only)
        deterministic_utils.fill_uninitialized_memory = fill  # type: ignore[attr-defined] # as above
        torch.backends.cuda.matmul.allow_tf32 = tf32
