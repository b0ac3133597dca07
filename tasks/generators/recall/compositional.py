"""Compositional recall: associative recall with keys of two tokens, which only together determine the value."""

from __future__ import annotations

import math

import numpy as np

from tasks.base import Arrays
from tasks.generators.draws import distinct, shuffled
from tasks.generators.recall.lookup import LookUp
from tasks.spec import TaskSpec


class Compositional(LookUp):
    """MQAR with compound keys: a grid of first and second tokens, with a value per cell.

    Definition, with V = vocab_size and K = n_pairs = G^2: the first tokens are G of 1 ... V/3 - 1, the second G of
    V/3 ... 2V/3 - 1, the values K of 2V/3 ... V - 1 (divisions rounded down), all without replacement. Each of the K
    combinations of a first with a second token has a value. The context is the K triples (first, second, value) in
    random order, 3K tokens. After it each combination is queried once, in a slot of three positions, drawn as in
    `mqar`. The label, at the second token, is the value. A model that uses only one of the two tokens must guess among
    G values.

    Source: `compositional_mqar` of HazyResearch/zoology, after Arora, Eyuboglu et al., "Zoology: Measuring and
    Improving Recall in Efficient Language Models", arXiv 2312.04927.

    `distance` counts from a label back to the value in the context; `pairs` is K.

    Prediction: A layer must first bind the two tokens of a key, by a short convolution or a learned shift. The rest is
    mqar: attention solves it, and the number of pairs limits a fixed state.

        >>> task = Compositional(vocab_size=30, seq_len=24, n_pairs=4, random_non_queries=False)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0, :12]))
           8   15   23    6   12   20    8   12   21    6   15   28
        >>> print(*(f"{token:4d}" for token in example["inputs"][0, 12:]))
           8   15    0    6   12    0    6   15    0    8   12    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0, 12:]))
        -100   23 -100 -100   20 -100 -100   28 -100 -100   21 -100

    Args:
        vocab_size: number of tokens, greater than seq_len; one third each are first tokens of keys (except 0), second
            tokens of keys, and values.
        seq_len: length of a sequence.
        n_pairs: number of combinations, a square number; each needs six positions.
        power_a: exponent a of the queries' positions; small values put them near the context, 1 spreads them evenly.
        random_non_queries: fill with random tokens (as published) instead of token 0.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        seq_len: int = 64,
        n_pairs: int = 4,
        power_a: float = 0.01,
        random_non_queries: bool = True,
    ) -> None:
        self._keep_shape(vocab_size, seq_len, power_a, random_non_queries)
        self.n_pairs = self._whole("n_pairs", n_pairs, 1)
        self._demand(math.isqrt(self.n_pairs) ** 2 == self.n_pairs, "n_pairs must be a square number")
        self._demand(6 * self.n_pairs <= self.seq_len, "6 * n_pairs must be <= seq_len")

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self.vocab_size - 2 * (self.vocab_size // 3), self.n_pairs, "pairs")

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        third, grid = self.vocab_size // 3, math.isqrt(self.n_pairs)
        firsts = 1 + distinct(rng, n, third - 1, grid)
        seconds = third + distinct(rng, n, third, grid)
        values = 2 * third + distinct(rng, n, self.vocab_size - 2 * third, self.n_pairs)
        # The values are in random order already; the cells must be shuffled too.
        cells = shuffled(rng, n, self.n_pairs)
        keys = np.stack(
            [np.take_along_axis(firsts, cells // grid, axis=1), np.take_along_axis(seconds, cells % grid, axis=1)],
            axis=2,
        )
        context = np.concatenate([keys, values[:, :, None]], axis=2).reshape(n, 3 * self.n_pairs)
        given = np.arange(2, 3 * self.n_pairs, 3)
        return self._ask(rng, context, keys, values, given, {"pairs": np.array(self.n_pairs)})
