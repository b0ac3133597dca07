"""Multi-query associative recall."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tasks.base import Arrays, Task
from tasks.draws import distinct, weighted_distinct
from tasks.spec import IGNORED, TaskSpec


class MQAR(Task):
    """Multi-query associative recall: each key of a list of key-value pairs is asked for once, later on.

    Definition, with V = vocab_size, L = seq_len, K = n_pairs: keys are drawn from 1 ... V/2 - 1 and values from
    V/2 ... V - 1, both without replacement. The context is the interleaved pairs, 2K tokens. Behind it lie (L - 2K)/2
    slots, at every second position; each key is placed in one of them, drawn without replacement with probability
    proportional to a i^(a-1) for slot i = 1, 2, ... (a = power_a), in the order of the pairs. The label where a key is
    asked for is its value. All other positions are unlabelled and hold, behind the context, uniform random tokens of
    the whole vocabulary (or 0), keys included: a query may meet its key in the filler too.

    Source: Arora, Eyuboglu et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
    arXiv 2312.04927; the defaults are its basic shape.

    `distance` is the query's position minus that of its value in the context, -1 where there is no label.

        >>> task = MQAR(vocab_size=20, seq_len=12, n_pairs=2, random_non_queries=False)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           8   15    6   12    6    0    8    0    0    0    0    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100   12 -100   15 -100 -100 -100 -100 -100

    Args:
        vocab_size: tokens; keys are the lower half but 0, values the upper half. Greater than seq_len.
        seq_len: length of a sequence, even.
        n_pairs: key-value pairs; four positions are needed for each.
        power_a: exponent a of the queries' positions; small puts them near the context, 1 spreads them evenly.
        random_non_queries: fill with random tokens (as published) instead of token 0.
    """

    name: ClassVar[str] = "mqar"
    source: ClassVar[str] = (
        "Arora, Eyuboglu et al., Zoology: Measuring and Improving Recall in Efficient Language Models, arXiv 2312.04927"
    )
    prediction: ClassVar[str] = (
        "Attention solves it at any width that tells the keys apart; a mixer of fixed state fails once the pairs are "
        "more than its state can hold, and the delta rule holds more pairs in the same state than decay alone."
    )
    sources: ClassVar[tuple[str, ...]] = ("tasks.draws",)

    def __init__(
        self,
        vocab_size: int = 256,
        seq_len: int = 64,
        n_pairs: int = 4,
        power_a: float = 0.01,
        random_non_queries: bool = True,
    ) -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 1)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_pairs = self._whole("n_pairs", n_pairs, 1)
        self.power_a = float(power_a)
        self.random_non_queries = bool(random_non_queries)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even", "seq_len")
        self._demand(4 * self.n_pairs <= self.seq_len, "4 * n_pairs must be <= seq_len", "n_pairs", "seq_len")
        self._demand(self.vocab_size > self.seq_len, "vocab_size must be > seq_len", "vocab_size", "seq_len")
        self._demand(math.isfinite(self.power_a) and self.power_a > 0, "power_a must be positive", "power_a")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(
            input="tokens",
            seq_len=self.seq_len,
            n_outputs=self.vocab_size,
            loss="cross_entropy",
            chance=1 / (self.vocab_size - self.vocab_size // 2),
            vocab_size=self.vocab_size,
            labelled=self.n_pairs,
            facts=("distance",),
        )

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        context, first_value = 2 * self.n_pairs, self.vocab_size // 2
        keys = 1 + distinct(rng, n, first_value - 1, self.n_pairs)
        values = first_value + distinct(rng, n, self.vocab_size - first_value, self.n_pairs)
        slot_weights = np.arange(1, (self.seq_len - context) // 2 + 1) ** (self.power_a - 1)
        queries = context + 2 * weighted_distinct(rng, n, slot_weights, self.n_pairs)

        if self.random_non_queries:
            inputs = rng.integers(self.vocab_size, size=(n, self.seq_len))
        else:
            inputs = np.zeros((n, self.seq_len), dtype=np.int64)
        inputs[:, 0:context:2] = keys
        inputs[:, 1:context:2] = values
        np.put_along_axis(inputs, queries, keys, axis=1)

        labels = np.full((n, self.seq_len), IGNORED, dtype=np.int64)
        np.put_along_axis(labels, queries, values, axis=1)

        distance = np.full((n, self.seq_len), -1, dtype=np.int32)
        value_positions = np.arange(1, context, 2)
        np.put_along_axis(distance, queries, queries - value_positions, axis=1)
        return {"inputs": inputs, "labels": labels, "distance": distance}
