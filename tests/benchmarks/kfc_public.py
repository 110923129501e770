"""Public images for probes: another digit set, and photographs, both out of scikit-learn's wheel.

The wheel is fetched once by `pip download` into the user's cache and read as an archive; nothing of it runs.
Digits: 1,797 of UCI's optical recognition set, 8 x 8, other writers and scanners than MNIST's.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import zipfile
from functools import cache

import matplotlib.image
import numpy as np
import torch
from tests.benchmarks import kfc_cache
from torch import Tensor, nn

VERSION = "1.7.2"
DIGITS = "sklearn/datasets/data/digits.csv.gz"
PHOTOGRAPHS = ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
SIDE, PATCHES = 14, 4000


@cache
def _wheel() -> zipfile.ZipFile:
    folder = kfc_cache.folder()
    found = sorted(folder.glob(f"scikit_learn-{VERSION}-*.whl"))
    if not found:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
        subprocess.run(
            [sys.executable, "-m", "pip", *words, f"scikit-learn=={VERSION}"], check=True, timeout=600
        )
        found = sorted(folder.glob(f"scikit_learn-{VERSION}-*.whl"))
    return zipfile.ZipFile(found[0])


def other_digits() -> tuple[Tensor, Tensor]:
    """float32 images (1797, 1, 14, 14) in [0, 1] and their labels; enlarged bilinearly."""
    packed = _wheel().read(DIGITS)
    if hashlib.sha256(packed).hexdigest() != DIGITS_SHA256:
        raise SystemExit(f"{DIGITS} is not the file that the figures were made with")
    rows = np.loadtxt(io.StringIO(gzip.decompress(packed).decode()), delimiter=",")
    images = torch.from_numpy((rows[:, :64] / 16).astype(np.float32).reshape(-1, 1, 8, 8))
    grown = nn.functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return grown, torch.from_numpy(rows[:, 64]).long()


def photographs(classes: int) -> tuple[Tensor, Tensor]:
    """Grey patches (4000, 1, 14, 14) in [0, 1] of two photographs, and labels drawn uniformly."""
    rng = np.random.default_rng(2026)
    patches = []
    for name in PHOTOGRAPHS:
        picture = matplotlib.image.imread(io.BytesIO(_wheel().read(name)), format="jpg")
        grey = torch.from_numpy(picture.astype(np.float32).mean(axis=2) / 255)[None, None]
        grey = nn.functional.avg_pool2d(grey, 2)[0, 0]
        for _ in range(PATCHES // len(PHOTOGRAPHS)):
            top, left = (int(rng.integers(0, size - SIDE + 1)) for size in grey.shape)
            patches.append(grey[top : top + SIDE, left : left + SIDE])
    return torch.stack(patches)[:, None], torch.from_numpy(rng.integers(0, classes, PATCHES))
