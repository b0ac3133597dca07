"""Noisy recall: MAD's in-context recall among pairs of noise tokens."""

from __future__ import annotations

import math

import numpy as np

from tasks.base import Arrays
from tasks.generators.recall.mad_recall import MadRecall, draw_pairs
from tasks.spec import TaskSpec


class NoisyRecall(MadRecall):
    """In-context recall among pairs of noise tokens, which must be ignored.

    Definition: as `in_context_recall`, with keys and values of a vocabulary of V' = vocab_size - noise_vocab_size
    tokens and noise tokens V' ... vocab_size - 1. Each pair is replaced by two uniform noise tokens with probability
    frac_noise, except one pair drawn uniformly and the last pair. Training labels every position with its next token,
    noise included, unless train_targets="answers"; validation and test label the keys that occurred before.

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD), arXiv 2403.17844, in the
    multi-query form of its benchmark.

    Unlike in MAD, the pair that is never noise comes before the last, so that every sequence has a key to query; and
    the last value is not cut off: it ends the sequence, without a label.

    `distance` counts from a key back to its value's last occurrence.

    Prediction: As in_context_recall for mixers that write selectively, since gates and attention ignore noise. In a
    linear time-invariant mixer, noise overwrites the state.

        >>> task = NoisyRecall(10, 12, noise_vocab_size=4, frac_noise=0.4, train_targets="answers")
        >>> example = task.sample(np.random.default_rng(3), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           2    3    0    5    7    8    0    5    8    9    0    5
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100    5 -100 -100 -100    5 -100

    Args:
        vocab_size: number of tokens, noise included; the lower half of the others are keys, the upper half values.
        seq_len: length of a sequence, even.
        noise_vocab_size: number of noise tokens.
        frac_noise: probability that a pair is noise, in [0, 1).
        train_targets: labels of training, "every_token" (as published) or "answers".
    """

    def __init__(
        self,
        vocab_size: int = 32,
        seq_len: int = 128,
        noise_vocab_size: int = 16,
        frac_noise: float = 0.2,
        train_targets: str = "every_token",
    ) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 5)
        self.seq_len = self._whole("seq_len", seq_len, 4)
        self.noise_vocab_size = self._whole("noise_vocab_size", noise_vocab_size, 1)
        self.frac_noise = float(frac_noise)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")
        self._demand(self.vocab_size - self.noise_vocab_size >= 4, "noise_vocab_size must be <= vocab_size - 4")
        self._demand(math.isfinite(self.frac_noise) and 0 <= self.frac_noise < 1, "frac_noise must lie in [0, 1)")
        self._keep_train_targets(train_targets)
        self._n_keys = (self.vocab_size - self.noise_vocab_size) // 2
        self._n_values = self.vocab_size - self.noise_vocab_size - self._n_keys

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self._n_values)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        noise = self.noise_vocab_size, self.frac_noise
        return self._labelled(*draw_pairs(rng, n, self.seq_len // 2, self._n_keys, self._n_values, *noise))
