"""Synthetic text: tokens of a Zipf or a uniform law with special tokens and padding, and bags of such tokens.

Reference: arXiv 2605.13418, Algorithm 4 (uniform tokens); token-frequency priors are an extension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from evertally.errors import InvalidParameter
from evertally.pipelines.training.interfaces import MicroBatch
from evertally.pipelines.training.probes import Targets
from evertally.pipelines.training.probes_stream import PublicStream
from evertally.validation import integer, one_of, positive_integer, positive_real

__all__ = ["TokenProbe", "ZipfDocuments", "zipf_probabilities"]

_LAWS: Final = ("zipf", "uniform")


def zipf_probabilities(size: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Probabilities r^-s / H of ranks 1 .. size.

    >>> round(float(zipf_probabilities(10)[0]), 12)
    0.341417152147
    """
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, slots=True)
class TokenProbe:
    """Sequences of tokens: [CLS] body [SEP] PAD ..., with a mask of active positions.

    Attributes:
        seed: public bytes, at least 16.
        vocabulary: tokens of the model, special ones included.
        length: positions of a sequence, padding included.
        targets: labels, independent of the tokens.
        low: first ordinary token; those below are reserved (999 in BERT's vocabulary).
        law: "zipf" (token low + r - 1 has rank r) or "uniform", the paper's.
        exponent: of the Zipf law.
        length_min: fewest active positions, special ones included.
        first_token: token at position 0, or None.
        last_token: token at the last active position, or None.
        padding: token of inactive positions.
        mask: whether the model takes the mask (int64, 1 where active) as its second argument.
    """

    seed: bytes = field(repr=False)
    vocabulary: int
    length: int
    targets: Targets
    low: int = 1
    law: str = "zipf"
    exponent: float = 1.0
    length_min: int = 5
    first_token: int | None = None
    last_token: int | None = None
    padding: int = 0
    mask: bool = True

    def __post_init__(self) -> None:
        positive_integer("vocabulary", self.vocabulary)
        positive_integer("length", self.length)
        integer("low", self.low, low=0, high=self.vocabulary - 1)
        one_of("law", self.law, _LAWS)
        positive_real("exponent", self.exponent)
        integer("length_min", self.length_min, low=1 + self._specials(), high=self.length)
        for name, token in (("first_token", self.first_token), ("last_token", self.last_token)):
            if token is not None:
                integer(name, token, low=0, high=self.vocabulary - 1)
        integer("padding", self.padding, low=0, high=self.vocabulary - 1)

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        """int64 tokens (count, length) and, with `mask`, int64 masks of the same shape."""
        tokens = np.full((count, self.length), self.padding, dtype=np.int64)
        mask = np.zeros_like(tokens)
        cumulative = np.cumsum(self._body())
        for i in range(count):
            stream = PublicStream(self.seed, "inputs", step, first + i)
            active = int(stream.integers(self.length_min, self.length + 1, 1)[0])
            ranks = np.searchsorted(cumulative, stream.uniform(active) * cumulative[-1], side="right")
            tokens[i, :active] = self.low + ranks
            if self.first_token is not None:
                tokens[i, 0] = self.first_token
            if self.last_token is not None:
                tokens[i, active - 1] = self.last_token
            mask[i, :active] = 1
        inputs = [tokens, mask] if self.mask else [tokens]
        return MicroBatch(
            tuple(torch.from_numpy(array) for array in inputs),
            self.targets.draw(self.seed, step, first, count),
        )

    def token_frequencies(self) -> NDArray[np.float64]:
        """Expected share of each token over all positions, padding included: float64 (vocabulary,), sum 1."""
        mean_length = (self.length_min + self.length) / 2
        frequencies = np.zeros(self.vocabulary)
        frequencies[self.low :] += self._body() * (mean_length - self._specials())
        for token in (self.first_token, self.last_token):
            if token is not None:
                frequencies[token] += 1.0
        frequencies[self.padding] += self.length - mean_length
        return np.asarray(frequencies / self.length)

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {
            "probe": "tokens",
            "seed": self.seed.hex(),
            "vocabulary": self.vocabulary,
            "length": self.length,
            "low": self.low,
            "law": self.law,
            "exponent": self.exponent,
            "length_min": self.length_min,
            "first_token": self.first_token,
            "last_token": self.last_token,
            "padding": self.padding,
            "mask": self.mask,
            **self.targets.describe(),
        }

    def _specials(self) -> int:
        return (self.first_token is not None) + (self.last_token is not None)

    def _body(self) -> NDArray[np.float64]:
        size = self.vocabulary - self.low
        return zipf_probabilities(size, self.exponent) if self.law == "zipf" else np.full(size, 1.0 / size)


@dataclass(frozen=True, slots=True)
class ZipfDocuments:
    """Bags of words: weighted counts of Zipf tokens, scaled to length 1, for linear models of text.

    Attributes:
        seed: public bytes, at least 16.
        features: words of the dictionary, the most frequent first.
        targets: labels, independent of the words.
        exponent: of the Zipf law.
        length_min: fewest words of a document.
        length_max: most words of a document.
        inverse_frequency: weigh counts by log((1 + n) / (1 + n q_v)) + 1 in the limit of many documents, q_v
            being the probability that a document of mean length holds the word.
    """

    seed: bytes = field(repr=False)
    features: int
    targets: Targets
    exponent: float = 1.0
    length_min: int = 5
    length_max: int = 20
    inverse_frequency: bool = True

    def __post_init__(self) -> None:
        positive_integer("features", self.features)
        positive_real("exponent", self.exponent)
        positive_integer("length_min", self.length_min)
        if integer("length_max", self.length_max) < self.length_min:
            raise InvalidParameter("length_max", self.length_max, f">= length_min = {self.length_min}")

    def batch(self, step: int, first: int, count: int) -> MicroBatch:
        """float32 inputs (count, features), each of length 1, and their targets."""
        probabilities = zipf_probabilities(self.features, self.exponent)
        cumulative = np.cumsum(probabilities)
        counts = np.zeros((count, self.features))
        for i in range(count):
            stream = PublicStream(self.seed, "inputs", step, first + i)
            words = int(stream.integers(self.length_min, self.length_max + 1, 1)[0])
            ranks = np.searchsorted(cumulative, stream.uniform(words) * cumulative[-1], side="right")
            np.add.at(counts[i], ranks, 1.0)
        if self.inverse_frequency:
            mean_length = (self.length_min + self.length_max) / 2
            counts *= 1.0 - np.log(-np.expm1(mean_length * np.log1p(-np.minimum(probabilities, 0.999))))
        inputs = counts / np.linalg.norm(counts, axis=1, keepdims=True)
        return MicroBatch(
            (torch.from_numpy(inputs.astype(np.float32)),), self.targets.draw(self.seed, step, first, count)
        )

    def describe(self) -> dict[str, object]:
        """Public parameters; JSON values."""
        return {
            "probe": "zipf-documents",
            "seed": self.seed.hex(),
            "features": self.features,
            "exponent": self.exponent,
            "length_min": self.length_min,
            "length_max": self.length_max,
            "inverse_frequency": self.inverse_frequency,
            **self.targets.describe(),
        }
