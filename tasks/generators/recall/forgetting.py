"""Forgetting: associative recall in which some keys get a new value, and the last one counts."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.draws import distinct, shuffled
from tasks.generators.recall.lookup import LookUp
from tasks.spec import TaskSpec


class Forgetting(LookUp):
    """MQAR in which some keys are re-assigned: the state must forget the old value, not only learn the new one.

    Definition: The context begins with K = n_pairs pairs as in `mqar`, keys and values both without replacement. Then
    come U = n_updates more pairs, for U different keys of these K, each with a value drawn uniformly from the values
    other than the key's first one. All K keys are queried after this context of 2 (K + U) tokens, at positions drawn as
    in `mqar`; the label is the last value of the key.

    Source: `forgetting_mqar` of HazyResearch/zoology, after Arora, Eyuboglu et al., "Zoology: Measuring and
    Improving Recall in Efficient Language Models", arXiv 2312.04927.

    Unlike in zoology, an update never repeats the value that it replaces. Zoology excludes the first value of another
    key, the one with the update's number in the list.

    `distance` counts from a query back to its current value, `pairs` is K, `assignments` is 2 for re-assigned keys,
    else 1.

    Prediction: The delta rule overwrites the value of a key and keeps its accuracy on re-assigned keys. A state that
    only adds, or forgets only with age, returns a mixture of old and new value. Attention must learn to prefer the
    later value.

        >>> task = Forgetting(vocab_size=20, seq_len=14, n_pairs=2, n_updates=1, random_non_queries=False)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           8   15    6   12    6   13    8    0    6    0    0    0    0    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100   15 -100   13 -100 -100 -100 -100 -100

    Args:
        vocab_size: number of tokens, greater than seq_len; keys are the lower half except 0, values the upper half.
        seq_len: length of a sequence, even.
        n_pairs: number of keys; each needs four positions.
        n_updates: number of re-assigned keys; each needs two more positions.
        power_a: exponent a of the queries' positions; small values put them near the context, 1 spreads them evenly.
        random_non_queries: fill with random tokens (as published) instead of token 0.
    """

    def __init__(
        self,
        vocab_size: int = 256,
        seq_len: int = 64,
        n_pairs: int = 8,
        n_updates: int = 4,
        power_a: float = 0.01,
        random_non_queries: bool = True,
    ) -> None:
        self._keep_shape(vocab_size, seq_len, power_a, random_non_queries)
        self.n_pairs = self._whole("n_pairs", n_pairs, 1)
        self.n_updates = self._whole("n_updates", n_updates, 0)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")
        self._demand(self.n_updates <= self.n_pairs, "n_updates must be <= n_pairs")
        needed = 4 * self.n_pairs + 2 * self.n_updates
        self._demand(needed <= self.seq_len, "4 * n_pairs + 2 * n_updates must be <= seq_len")

    @property
    def spec(self) -> TaskSpec:
        return self._spec(self.vocab_size - self.vocab_size // 2, self.n_pairs, "pairs", "assignments")

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        first_value = self.vocab_size // 2
        n_values = self.vocab_size - first_value
        keys = 1 + distinct(rng, n, first_value - 1, self.n_pairs)
        values = distinct(rng, n, n_values, self.n_pairs)
        updated = shuffled(rng, n, self.n_pairs)[:, : self.n_updates]
        old = np.take_along_axis(values, updated, axis=1)
        new = (old + rng.integers(1, n_values, size=old.shape)) % n_values

        shown_keys = np.concatenate([keys, np.take_along_axis(keys, updated, axis=1)], axis=1)
        shown_values = first_value + np.concatenate([values, new], axis=1)
        context = np.stack([shown_keys, shown_values], axis=2).reshape(n, 2 * shown_keys.shape[1])
        last = np.broadcast_to(np.arange(self.n_pairs), keys.shape).copy()
        np.put_along_axis(last, updated, np.arange(self.n_pairs, self.n_pairs + self.n_updates)[None], axis=1)
        answers = np.take_along_axis(shown_values, last, axis=1)
        assignments = 1 + (last >= self.n_pairs)
        facts = {"pairs": np.array(self.n_pairs), "assignments": assignments}
        return self._ask(rng, context, keys[:, :, None], answers, 2 * last + 1, facts)
