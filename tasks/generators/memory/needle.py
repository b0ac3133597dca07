"""Needle: recall one relevant token, a fixed distance back among noise."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import distinct
from tasks.generators.placing import LAST, fact_at, labels_at
from tasks.spec import TaskSpec


class Needle(Task):
    """Recall the one relevant token, exactly `distance` positions before the question.

    Tokens 0 ... C - 1 (C = n_classes) are the needles, the next n_noise tokens are noise, the last token is the
    question. The question ends the sequence, one needle drawn uniformly is `distance` positions before it, and uniform
    noise fills the rest. The only label, at the last position, is the needle. The task tests only whether a signal
    survives the distance among noise: there is a single token to remember, and needles occur nowhere else.

    With n_distractors > 0, needle tokens do occur elsewhere: n_distractors of them, drawn uniformly, fill other
    positions, drawn uniformly without replacement. The needle is then the token right after a marker, which occurs once
    and is one more token in the vocabulary (numbered after the question). The decision to store a token then depends on
    the previous token.

    At another length the distance stays the same; only the noise at the beginning changes.

    At a small distance with few noise tokens there are few sequences, so the splits share examples.

    Source: this project, for gradient propagation against distance (Ghodsi, arXiv 2512.15115).

    `distance` is the option `distance`.

    Prediction: The gradient of attention does not depend on the distance. In a stable linear time-invariant mixer it
    decays with the distance, unless the poles lie on the unit circle. A gated recurrence retains it if it learns to
    close its gate on noise. With distractors, a linear time-invariant mixer cannot select the needle.

        >>> task = Needle(distance=5, n_classes=4, n_noise=6, seq_len=8)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           7    7    3    5    4    4    4   10
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100    3

    Args:
        distance: positions between the needle and the question.
        n_classes: number of needle tokens, which are the classes.
        n_noise: number of noise tokens.
        seq_len: length of a sequence; default the smallest that fits the needle, its marker and the question.
        n_distractors: number of irrelevant needle tokens; if positive, a marker precedes the needle.
    """

    def __init__(
        self,
        distance: int = 128,
        n_classes: int = 8,
        n_noise: int = 16,
        seq_len: int | None = None,
        n_distractors: int = 0,
    ) -> None:
        self.distance = self._whole("distance", distance, 1)
        self.n_classes = self._whole("n_classes", n_classes, 2)
        self.n_noise = self._whole("n_noise", n_noise, 1)
        self.n_distractors = self._whole("n_distractors", n_distractors, 0)
        self._marked = self.n_distractors > 0  # a marker precedes the needle
        self.seq_len = self._whole("seq_len", self.distance + 1 + self._marked if seq_len is None else seq_len, 1)
        self._demand(self.seq_len > self.distance, "seq_len must be > distance")
        if self._marked:
            self._demand(self.seq_len > self.distance + 1, "with distractors seq_len must be > distance + 1")
            self._demand(self.n_distractors <= self.seq_len - 3, "n_distractors must be <= seq_len - 3")

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len,
            self.n_classes + self.n_noise + 1 + self._marked,
            self.n_classes,
            labelled=1,
            facts=("distance",),
        )

    def guess_without_order(self) -> float | None:
        return None if self.n_distractors else 1.0

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        needles = rng.integers(self.n_classes, size=n)
        first_noise, question = self.n_classes, self.n_classes + self.n_noise
        inputs = rng.integers(first_noise, question, size=(n, self.seq_len))
        inputs[:, -1] = question
        inputs[:, -1 - self.distance] = needles
        if self._marked:
            marker = self.seq_len - 2 - self.distance
            inputs[:, marker] = question + 1
            # All positions except those of the marker, the needle after it, and the question.
            places = distinct(rng, n, self.seq_len - 3, self.n_distractors)
            places += 2 * (places >= marker)
            np.put_along_axis(inputs, places, rng.integers(self.n_classes, size=places.shape), axis=1)
        labels = labels_at(LAST, needles[:, None], self.seq_len)
        distance = fact_at(LAST, np.full((n, 1), self.distance), self.seq_len)
        return {"inputs": inputs, "labels": labels, "distance": distance}
