"""MQAR: multi-query associative recall."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.draws import distinct
from tasks.generators.recall.lookup import LookUp
from tasks.spec import TaskSpec


class MQAR(LookUp):
    """Multi-query associative recall: read key-value pairs, then recall the value of each queried key.

    Definition, with V = vocab_size, L = seq_len, K = n_pairs: keys are drawn from 1 ... V/2 - 1 and values from
    V/2 ... V - 1, both without replacement. The context is the interleaved pairs, 2K tokens. After it come (L - 2K)/2
    slots, at every second position. Each key draws a slot without replacement, in the order of the pairs, with
    probability proportional to a i^(a-1) for slot i = 1, 2, ... (a = power_a). The label at a queried key is its value;
    other positions have no label. After the context they hold uniform random tokens of the whole vocabulary (or 0),
    so a key may also occur in the filler.

    Source: Arora, Eyuboglu et al., "Zoology: Measuring and Improving Recall in Efficient Language Models",
    arXiv 2312.04927; the defaults are its basic shape.

    To measure recall against the size of the state, Arora et al., "Simple linear attention language models balance the
    recall-throughput tradeoff", arXiv 2402.18668, train on five shapes at once and test at L/4 pairs up to L = 1,024.
    That is a mixture, `configs/task/published/mqar-tradeoff.yaml`. `min_pairs` varies the pairs at a single length.

    `distance` counts from a query back to its value in the context, `pairs` is the example's number of pairs.

    Prediction: Attention solves it at any width that distinguishes the keys. A mixer with a fixed state fails once the
    pairs exceed its capacity; the delta rule stores more pairs in the same state than decay alone.

        >>> task = MQAR(vocab_size=20, seq_len=12, n_pairs=2, random_non_queries=False)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           8   15    6   12    6    0    8    0    0    0    0    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100   12 -100   15 -100 -100 -100 -100 -100

    Args:
        vocab_size: number of tokens, greater than seq_len; keys are the lower half except 0, values the upper half.
        seq_len: length of a sequence, even.
        n_pairs: number of key-value pairs; each needs four positions. None: the most that fit, at any length.
        power_a: exponent a of the queries' positions; small values put them near the context, 1 spreads them evenly.
        random_non_queries: fill with random tokens (as published) instead of token 0.
        min_pairs: if given, draw each example's number of pairs uniformly from min_pairs ... n_pairs.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        seq_len: int = 64,
        n_pairs: int | None = 4,
        power_a: float = 0.01,
        random_non_queries: bool = True,
        min_pairs: int | None = None,
    ) -> None:
        self._keep_shape(vocab_size, seq_len, power_a, random_non_queries)
        self.n_pairs = None if n_pairs is None else self._whole("n_pairs", n_pairs, 1)
        self.min_pairs = None if min_pairs is None else self._whole("min_pairs", min_pairs, 1)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")
        self._demand(4 <= 4 * self.most_pairs <= self.seq_len, "4 * n_pairs must be <= seq_len")
        ordered = self.min_pairs is None or self.min_pairs <= self.most_pairs
        self._demand(ordered, "min_pairs must be <= n_pairs", "seq_len")

    @property
    def most_pairs(self) -> int:
        """The number of pairs, or its maximum if the number is drawn."""
        return self.seq_len // 4 if self.n_pairs is None else self.n_pairs

    @property
    def spec(self) -> TaskSpec:
        n_values = self.vocab_size - self.vocab_size // 2
        return self._spec(n_values, self.most_pairs if self.min_pairs is None else None, "pairs")

    def guess_among_read(self) -> float:
        # Each pair is queried once, so the mean over queries is one over the mean number of pairs. Filler, which is
        # also read, can only lower this accuracy.
        return 2 / (self.most_pairs + (self.min_pairs or self.most_pairs))

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        most, first_value = self.most_pairs, self.vocab_size // 2
        keys = 1 + distinct(rng, n, first_value - 1, most)
        values = first_value + distinct(rng, n, self.vocab_size - first_value, most)
        context = np.stack([keys, values], axis=2).reshape(n, 2 * most)
        given = np.arange(1, 2 * most, 2)
        if self.min_pairs is None:
            return self._ask(rng, context, keys[:, :, None], values, given, {"pairs": np.array(most)})
        pairs = rng.integers(self.min_pairs, most, size=n, endpoint=True)
        facts = {"pairs": pairs[:, None]}
        return self._ask(rng, context, keys[:, :, None], values, given, facts, counts=pairs, fewest=self.min_pairs)
