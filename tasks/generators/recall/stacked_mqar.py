"""Stacked MQAR: associative recall in which a key and its value share one vector."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import distinct, shuffled
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec


class StackedMQAR(Task):
    """Multi-query associative recall over vectors, each of which holds both a key and its value.

    Definition, with m = n_symbols, P = n_passes and K = seq_len / (P + 1) pairs: K of m keys and K of m values are
    drawn without replacement and paired at random. The pairs are read P times, each time in another random order, one
    vector per pair: the key's d_key channels, then the value's. Then every key is queried once, in random order, as its
    channels followed by zeros; the label there is the number of its value. The vectors of keys and values are standard
    normal, drawn once from `vector_seed` and the same in all splits, like an embedding.

    In `mqar` a value follows its key, and a mixer must first move the two to one position (by a shift, a short
    convolution or a layer of attention). Here nothing has to be shifted: the task measures only the memory.

    Source: `continuous_mqar` of HazyResearch/zoology, zoology/data/stacked_mqar.py, with a new pairing for each
    sequence (per_sequence_mapping), after Arora, Eyuboglu et al., "Zoology", arXiv 2312.04927. There the caller
    supplies the vectors.

    `distance` counts from a query back to its pair in the last pass.

    Prediction: One layer suffices, without a short convolution. Attention recalls any number of pairs, linear attention
    about one per channel of its keys, and the delta rule more pairs in the same state.

        >>> task = StackedMQAR(seq_len=4, n_symbols=4, d_key=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0].T, 1))
        [[-0.5  1.3  1.3 -0.5]
         [ 0.4  0.9  0.9  0.4]
         [-0.6 -2.3  0.   0. ]
         [ 0.  -0.2  0.   0. ]]
        >>> print(example["labels"][0])
        [-100 -100    2    1]

    Args:
        seq_len: length of a sequence, a multiple of n_passes + 1.
        n_symbols: number of keys, and of values; at least the number of pairs.
        d_key: channels of a key, and of a value.
        n_passes: number of passes over the pairs.
        vector_seed: seed of the vectors of keys and values.
    """

    def __init__(
        self, seq_len: int = 32, n_symbols: int = 64, d_key: int = 16, n_passes: int = 1, vector_seed: int = 0
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_symbols = self._whole("n_symbols", n_symbols, 1)
        self.d_key = self._whole("d_key", d_key, 1)
        self.n_passes = self._whole("n_passes", n_passes, 1)
        self.vector_seed = self._whole("vector_seed", vector_seed, 0)
        self._demand(self.seq_len % (self.n_passes + 1) == 0, "seq_len must be a multiple of n_passes + 1")
        self._demand(self.n_pairs <= self.n_symbols, "n_symbols must be >= seq_len / (n_passes + 1)")

    @property
    def n_pairs(self) -> int:
        """Number of pairs in a sequence."""
        return self.seq_len // (self.n_passes + 1)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(
            input="vectors",
            seq_len=self.seq_len,
            n_outputs=self.n_symbols,
            loss="cross_entropy",
            chance=1 / self.n_symbols,
            d_input=2 * self.d_key,
            labelled=self.n_pairs,
            facts=("distance",),
        )

    @cached_property
    def vectors(self) -> np.ndarray:
        """Vectors of keys and values, float32 (2, n_symbols, d_key)."""
        shape = 2, self.n_symbols, self.d_key
        return np.random.default_rng(self.vector_seed).standard_normal(shape).astype(np.float32)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        keys, values = (distinct(rng, n, self.n_symbols, self.n_pairs) for _ in range(2))
        # The pair at each position, (n, seq_len); the queries are one more pass.
        orders = [shuffled(rng, n, self.n_pairs) for _ in range(self.n_passes + 1)]
        pair = np.concatenate(orders, axis=1)
        listed = self.seq_len - self.n_pairs
        inputs = np.zeros((n, self.seq_len, 2 * self.d_key), dtype=np.float32)
        inputs[:, :, : self.d_key] = self.vectors[0, np.take_along_axis(keys, pair, axis=1)]
        inputs[:, :listed, self.d_key :] = self.vectors[1, np.take_along_axis(values, pair[:, :listed], axis=1)]

        asked = orders[-1]
        positions = np.arange(listed, self.seq_len)
        read = listed - self.n_pairs + np.take_along_axis(orders[-2].argsort(axis=1), asked, axis=1)
        return {
            "inputs": inputs,
            "labels": labels_at(positions, np.take_along_axis(values, asked, axis=1), self.seq_len),
            "distance": fact_at(positions, positions - read, self.seq_len),
        }
