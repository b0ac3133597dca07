"""Induction heads: recall the token that followed a trigger."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays
from tasks.generators.every_token import EveryToken
from tasks.generators.occurrences import most_frequent_share
from tasks.generators.placing import LAST, fact_at, labels_at
from tasks.spec import TaskSpec


class InductionHeads(EveryToken):
    """A trigger occurs once among random tokens and again at the end: recall the token that followed it.

    Definition, with V = vocab_size, L = seq_len: tokens are drawn uniformly from 0 ... V - 2. The trigger V - 1
    replaces the last token, and the token at a position drawn uniformly from 0 ... L - 3. The only label, at the last
    position, is the token after the first trigger. With train_targets="every_token", training also labels every
    position with its next token, which is unpredictable.

    Source: Fu et al., "Hungry Hungry Hippos", arXiv 2212.14052, after Olsson et al., arXiv 2209.11895; the shape of Gu
    and Dao, "Mamba", arXiv 2312.00752: V = 16, trained at L = 256, tested from 2^6 to 2^20.

    `distance` counts from the end back to the answer.

    Prediction: Attention finds the trigger but does not extrapolate beyond its training lengths. A selective state
    stores the one token that it needs, at any length. A linear time-invariant mixer fails, except through the
    nonlinearity between its layers.

        >>> task = InductionHeads(vocab_size=8, seq_len=10)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{token:4d}" for token in example["inputs"][0]))
           5    4    3    1    2    7    0    0    1    7
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100    0

    Args:
        vocab_size: number of tokens, the trigger included.
        seq_len: length of a sequence.
        train_targets: labels of training, "answers" or "every_token" (as in the authors' code of 2212.14052).
    """

    def __init__(self, vocab_size: int = 16, seq_len: int = 256, train_targets: str = "answers") -> None:
        self.vocab_size = self._whole("vocab_size", vocab_size, 3)
        self.seq_len = self._whole("seq_len", seq_len, 3)
        self._keep_train_targets(train_targets)

    @property
    def spec(self) -> TaskSpec:
        labelled = 1 if self.train_targets == "answers" else None
        chance = 1 / (self.vocab_size - 1)
        return TaskSpec.tokens(self.seq_len, self.vocab_size, chance=chance, labelled=labelled, facts=("distance",))

    def input_text(self, token: int) -> str:
        return "!" if token == self.vocab_size - 1 else str(token)

    def guess_among_read(self) -> float:
        return most_frequent_share(self, self.vocab_size - 1)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        trigger, example = self.vocab_size - 1, np.arange(n)
        inputs = rng.integers(trigger, size=(n, self.seq_len))
        answer_places = 1 + rng.integers(self.seq_len - 2, size=n)
        inputs[example, answer_places - 1] = trigger
        inputs[:, -1] = trigger
        labels = labels_at(LAST, inputs[example, answer_places][:, None], self.seq_len)
        self._label_next(labels, inputs, False)
        distance = fact_at(LAST, self.seq_len - 1 - answer_places[:, None], self.seq_len)
        return {"inputs": inputs, "labels": labels, "distance": distance}
