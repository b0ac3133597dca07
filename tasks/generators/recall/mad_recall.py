"""Base class of MAD's three recall tasks: training labels every next token, tests only predictable ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tasks.base import Arrays
from tasks.generators import mad
from tasks.generators.draws import one_of
from tasks.generators.every_token import EveryToken
from tasks.generators.occurrences import first_and_previous
from tasks.spec import IGNORED, TaskSpec


class MadRecall(EveryToken):
    """A sequence of keys, each followed by its value, in which keys repeat.

    An answer is a token of the value of a key that occurred before; its label is at the position before it. The last
    pair repeats an earlier one, so that each example has an answer. train_targets = "every_token" is as published.

    Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844 (MAD).
    """

    reported: ClassVar[str] = mad.REPORTED

    vocab_size: int
    seq_len: int

    def _spec(self, n_values: int) -> TaskSpec:
        """Return the spec with `n_values` equally likely answers."""
        return TaskSpec.tokens(self.seq_len, self.vocab_size, chance=1 / n_values, facts=("distance",))

    def _labelled(self, tokens: np.ndarray, answers: np.ndarray, distance: np.ndarray) -> Arrays:
        """Return the examples, with next tokens as labels.

        Args:
            tokens: (n, seq_len), or (n, seq_len + 1) if the last one is only a label.
            answers: whether each token is predictable; bool, in the shape of `tokens`.
            distance: distance from the position before an answer to its last occurrence; in the shape of `tokens`.
        """
        inputs = np.ascontiguousarray(tokens[:, : self.seq_len])
        labels = np.full(inputs.shape, IGNORED, dtype=np.int64)
        distances = np.full(inputs.shape, -1, dtype=np.int32)
        self._label_next(labels, tokens, answers)
        n_next = tokens.shape[1] - 1
        np.copyto(distances[:, :n_next], distance[:, 1:], where=answers[:, 1:], casting="same_kind")
        return {"inputs": inputs, "labels": labels, "distance": distances}


def draw_pairs(
    rng: np.random.Generator,
    n: int,
    n_pairs: int,
    n_keys: int,
    n_values: int,
    n_noise: int = 0,
    frac_noise: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw pairs of a key and a value token; keys are 0 ... n_keys - 1, then come values, then noise tokens.

    Every key has one value per sequence, drawn with replacement. Keys are drawn with replacement, the last one from
    the keys that occurred before it. A noise pair is two noise tokens; one pair drawn uniformly and the last one are
    never noise.

    Returns:
        Tokens, whether each is an answer, and the distance from the position before each answer to the last occurrence
        of its value, else -1; all (n, 2 n_pairs).
    """
    keys = rng.integers(n_keys, size=(n, n_pairs))
    value_of = n_keys + rng.integers(n_values, size=(n, n_keys))
    noisy = np.zeros((n, n_pairs), dtype=bool)
    if frac_noise > 0:
        noisy[:, :-1] = rng.random((n, n_pairs - 1)) < frac_noise
        noisy[np.arange(n), rng.integers(n_pairs - 1, size=n)] = False
    # A noise pair counts as a unique key.
    met = np.where(noisy, n_keys + np.arange(n_pairs), keys)
    shown = np.zeros((n, n_keys + n_pairs), dtype=bool)
    np.put_along_axis(shown, met[:, :-1], True, axis=1)
    met[:, -1] = keys[:, -1] = one_of(rng, shown[:, :n_keys])

    tokens = np.stack([keys, np.take_along_axis(value_of, keys, axis=1)], axis=2)
    if frac_noise > 0:
        first_noise = n_keys + n_values
        noise = rng.integers(first_noise, first_noise + n_noise, size=tokens.shape)
        tokens = np.where(noisy[:, :, None], noise, tokens)
    _, previous = first_and_previous(met)
    distance = np.full(tokens.shape, -1)
    distance[:, :, 1] = np.where(previous >= 0, 2 * (np.arange(n_pairs) - previous) - 1, -1)
    tokens, distance = (array.reshape(n, 2 * n_pairs) for array in (tokens, distance))
    return tokens, distance >= 0, distance
