"""What do synthetic factors look like beside public and private ones, and what do their settings cost?

.venv-train/bin/python -m tests.benchmarks.make_kfc_studies                  (writes docs/training-studies.md)
.venv-train/bin/python -m tests.benchmarks.make_kfc_studies --sweeps mlp14   (writes its last section alone)

Eigenvalue decay, cosine and Frobenius distance of A and G per layer for an MLP, a CNN and an attention block,
condition numbers; accuracy and cost over the settings of the preconditioner.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from tests.benchmarks.bench_kfc_accuracy import noise_multiplier
from tests.benchmarks.kfc_tasks import DEBIAN_SECTIONS, PUBLIC, SEED, WORDS, descriptions, digits, task
from tests.benchmarks.kfc_training import METHODS, Examples, Options, train
from torch import Tensor, nn

from evertally.pipelines.training.factors import FactorSums
from evertally.pipelines.training.factors_roots import Damping, inverse_root
from evertally.pipelines.training.interfaces import MicroBatch, Probe
from evertally.pipelines.training.layers import Kind, inventory
from evertally.pipelines.training.losses import CrossEntropy
from evertally.pipelines.training.probes import PinkNoise, UniformLabels
from evertally.pipelines.training.probes_text import TokenProbe
from evertally.pipelines.training.taps import record

DOCS = Path(__file__).parents[2] / "docs"
LENGTH, PROBES, WARM_STEPS = 12, 512, 100
REFRESHES, COUNTS, ALPHAS = (10, 40, 200, 1000), (64, 256, 1024, 4096), (0.0, 0.5, 1.0, 1.5, 2.0)
BRIGHTNESSES, GAMMAS, CLIPS, UPDATE = (0.0, 0.5, 1.0, 2.0, 4.0), (0.05, 0.5, 2.0), (0.03, 0.1, 0.3, 1.0), 0.1

LIT = f"pink, alpha 2, brightness {Options().brightness:g}"
SEEDS, CLIP = (1, 2), 0.3

Factors = dict[str, Tensor]


class Block(nn.Module):
    """Embedding, one attention block with a fused projection, mean over active positions, a linear head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS + 1, width, padding_idx=0)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, DEBIAN_SECTIONS)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(mask[:, None] == 0, -1e9)
        x = x + self.out(scores.softmax(-1) @ v)
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


class Sequences(Examples):
    """Real token sequences and their masks."""

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        inputs, targets = super().batch(step, first, count)
        return MicroBatch((inputs[0], (inputs[0] > 0).long()), targets)


def sequences() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Token sequences of private and of public descriptions; word r of the dictionary is token r."""
    documents, labels, dictionary = descriptions()
    index = {word: i + 1 for i, word in enumerate(dictionary)}
    tokens = torch.zeros(len(documents), LENGTH, dtype=torch.int64)
    for row, words in enumerate(documents):
        known = [index[word] for word in words if word in index][:LENGTH] or [1]
        tokens[row, : len(known)] = torch.tensor(known)
    return (tokens[:-PUBLIC], labels[:-PUBLIC]), (tokens[-PUBLIC:], labels[-PUBLIC:])


def subjects() -> dict[str, tuple[nn.Module, dict[str, Probe]]]:
    """Models and the sources of their probes; "oracle" is the private data with its labels."""
    torch.manual_seed(0)
    found: dict[str, tuple[nn.Module, dict[str, Probe]]] = {}
    for name in ("mlp14", "cnn14"):
        chosen = digits(name)
        pink: dict[str, Probe] = {
            f"pink, alpha {alpha:g}": PinkNoise(SEED, (1, 14, 14), UniformLabels(10), alpha=alpha)
            for alpha in (0.0, 1.0, 2.0)
        }
        lit = chosen.probe(2.0, Options().brightness)
        real = {source: Examples(chosen.public[source]()) for source in chosen.public}
        found[name] = (chosen.model(), {**pink, LIT: lit, **real, "oracle": Examples(chosen.train)})
    private, public = sequences()
    labels = UniformLabels(DEBIAN_SECTIONS)
    text: dict[str, Probe] = {
        f"{law} tokens": TokenProbe(SEED, WORDS + 1, LENGTH, labels, law=law, length_min=3)
        for law in ("uniform", "zipf")
    }
    found["attention"] = (Block(), {**text, "public": Sequences(public), "oracle": Sequences(private)})
    return found


def warm(model: nn.Module, source: Probe) -> None:
    """A little plain training, so that factors are not those of the initial weights alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(WARM_STEPS):
        batch = source.batch(10_000 + step, 0, 128)
        optimizer.zero_grad()
        torch.autograd.backward(CrossEntropy().per_example(model(*batch.inputs), batch.targets).mean())
        optimizer.step()


def factors(model: nn.Module, probe: Probe) -> Factors:
    """A and G of every matrix layer, as dense matrices of trace d."""
    layers = tuple(layer for layer in inventory(model) if layer.kind is not Kind.LAYER_NORM)
    sums = {layer.name: FactorSums(layer, dense_max=4096) for layer in layers}
    for first in range(0, PROBES, 64):
        taps = record(model, layers, CrossEntropy(), probe.batch(0, first, 64))
        for name, one in sums.items():
            one.add(taps[name])
    found: Factors = {}
    for name, one in sums.items():
        both = one.factors()
        for side, matrix in (("A", both.right), ("G", both.left)):
            assert matrix is not None
            square = torch.diag(matrix) if matrix.dim() == 1 else matrix
            found[f"{name}/{side}"] = square / square.diagonal().mean()
    return found


def spectra_rows(name: str, source: str, found: Factors) -> list[str]:
    rows = []
    for key, matrix in found.items():
        values = torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0)
        share = (values.cumsum(0) / values.sum()).numpy()
        root = inverse_root(matrix, Damping(0.5, relative=True))
        tenth = max(1, len(values) // 10)
        shares = f"{100 * share[0]:.1f} | {100 * share[tenth - 1]:.1f}"
        ends = f"{float(values[0]):.3g} | {float(values[-1]):.2g}"
        rows.append(
            f"| {name} | {key} | {source} | {len(values)} | {shares} | {ends} | {root.condition:.2f} |"
        )
    return rows


def distance_rows(name: str, every: dict[str, Factors]) -> list[str]:
    rows = []
    oracle = every["oracle"]
    for key, truth in oracle.items():
        for source, found in every.items():
            if source == "oracle":
                continue
            other = found[key]
            cosine = float((truth * other).sum() / truth.norm() / other.norm())
            gap = float((truth - other).norm() / truth.norm())
            eye = torch.eye(len(truth), dtype=truth.dtype)
            flat = float((truth - eye).norm() / truth.norm())
            rows.append(f"| {name} | {key} | {source} | {cosine:.3f} | {gap:.3f} | {flat:.3f} |")
    return rows


def draw(every: dict[str, dict[str, Factors]]) -> None:
    """Eigenvalues over rank for the first and the last layer of each model."""
    figure = Figure(figsize=(11, 6))
    axes = figure.subplots(2, len(every))
    for column, (name, sources) in enumerate(every.items()):
        layers = list(dict.fromkeys(key.split("/")[0] for key in sources["oracle"]))
        for row, side in enumerate("AG"):
            axis = axes[row][column]
            key = f"{layers[0] if side == 'A' else layers[-1]}/{side}"
            for source, found in sources.items():
                values = torch.linalg.eigvalsh(found[key]).flip(0).clamp(min=1e-8)
                ranks = np.unique(np.geomspace(1, len(values), 40).astype(int))
                axis.loglog(ranks, values[ranks - 1], label=source)
            axis.set_title(f"{name}: {key}", fontsize=9)
            axis.set_ylim(1e-6, None)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=6)
    figure.supxlabel("rank", fontsize=9)
    figure.supylabel("eigenvalue, mean 1", fontsize=9)
    figure.tight_layout()
    figure.savefig(DOCS / "training-spectra.svg", metadata={"Date": None})


def sweeps(name: str) -> list[str]:
    """Accuracy and cost over one setting at a time; the others at their defaults."""
    chosen = task(name)
    sigma = noise_multiplier(chosen, 1.0)
    rows = []
    plain = partial(Options, brightness=0.0)
    settings: list[tuple[str, float, dict[str, Any]]] = [
        *[("refresh every", v, {"options": plain(refresh_every=v)}) for v in REFRESHES],
        *[("probes", v, {"options": plain(probes=v)}) for v in COUNTS],
        *[("alpha", v, {"options": plain(alpha=v)}) for v in ALPHAS],
        *[("brightness", v, {"options": Options(brightness=v)}) for v in BRIGHTNESSES],
        *[("gamma", v, {"options": plain(gamma=v)}) for v in GAMMAS],
        *[("clip norm", v, {"clip_norm": v, "rate": UPDATE / v}) for v in CLIPS],
    ]
    default = {"rate": UPDATE / CLIP, "clip_norm": CLIP, "options": plain()}
    for label, value, words in settings:
        run = partial(train, METHODS["kfc-lit"], chosen, noise_multiplier=sigma)
        outcomes = [run(**{**default, "seed": seed, **words}) for seed in SEEDS]
        accuracy = [outcome.accuracy for outcome in outcomes]
        rows.append(
            f"| {name} | {label} | {value:g} | {statistics.mean(accuracy):.1f} +- "
            f"{statistics.stdev(accuracy):.1f} | {statistics.mean(o.cpu_s for o in outcomes):.1f} | "
            f"{max(o.condition for o in outcomes):.1f} | {min(o.smallest for o in outcomes):.2g} |"
        )
        print(rows[-1], flush=True)
    return rows


def studies() -> list[str]:
    """Everything but the sweeps."""
    started = time.process_time()
    every: dict[str, dict[str, Factors]] = {}
    spectra, distances = [], []
    for name, (model, sources) in subjects().items():
        warm(model, sources["oracle"])
        every[name] = {source: factors(model, probe) for source, probe in sources.items()}
        for source in every[name]:
            spectra += spectra_rows(name, source, every[name][source])
        distances += distance_rows(name, every[name])
        print(f"{name}: {time.process_time() - started:.0f} CPU s", flush=True)
    draw(every)
    return [
        INTRODUCTION,
        "| model | factor | probes | d | top 1, % of trace | top tenth, % | largest | smallest | cond(U) |",
        "|---|---|---|---|---|---|---|---|---|",
        *spectra,
        DISTANCES,
        "| model | factor | probes | cosine | Frobenius distance | distance of the identity |",
        "|---|---|---|---|---|---|",
        *distances,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", default="", help="a task to sweep: mlp14, cnn14 or text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    page = DOCS / "training-studies.md"
    old = page.read_text() if page.exists() else ""
    cut = old.find(TITLE) if TITLE in old else len(old)
    if arguments.sweeps:
        swept = [
            SWEEPS,
            "| task | setting | value | accuracy, % | CPU s | largest cond(U) | lambda_min of A |",
            "|---|---|---|---|---|---|---|",
            *sweeps(arguments.sweeps),
        ]
        page.write_text(old[:cut] + "\n".join(swept) + "\n")
    else:
        page.write_text("\n".join(studies()) + "\n\n" + (old[cut:] or f"{TITLE}\n\nNot run.\n"))
    print(f"wrote {page.name}")


INTRODUCTION = f"""# Studies of the preconditioner

Written by `tests/benchmarks/make_kfc_studies.py`; nothing here is typed by hand. Models after {WARM_STEPS}
steps of plain training on the private data, {PROBES} probes a source. "public": 500 held-out examples of the
same domain; "oracle": the private training data with their labels, which no private run may use. Factors are
divided by their mean eigenvalue.

![Eigenvalues of A of the first layer and G of the last](training-spectra.svg)

## Eigenvalue decay and condition of the roots
"""
DISTANCES = """
## Distance to the oracle's factors

Frobenius distance relative to the oracle's norm; the last column is what no preconditioning would have.
"""
TITLE = "## Settings and their cost"
SWEEPS = f"""{TITLE}

DP-KFC at epsilon 1, mean and standard deviation of {len(SEEDS)} seeds; one setting moves, the others
stay at refresh every 2 b steps, {PROBES} probes, alpha 2, brightness 0, gamma 0.5, clip norm {CLIP:g}, rate
times clip norm {UPDATE:g}.
lambda_min: smallest eigenvalue of any A, relative to its mean; the last G always has a 0 (a softmax's deltas
sum to nothing), and so has A of images without brightness, whose mean is 0. CPU seconds are of the whole run,
refreshes included. A run has 200 steps (mlp14), so 1000 refreshes once.
"""


if __name__ == "__main__":
    main()
