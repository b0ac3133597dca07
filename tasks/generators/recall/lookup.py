"""Base class of the MQAR family: a context of pairs, then questions with filler between them."""

from __future__ import annotations

import math

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import weighted_distinct
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec


class LookUp(Task):
    """A context that answers questions, then a region in which each question is asked once.

    A question of w tokens takes a slot of w + 1 positions; slots follow each other from the end of the context on.
    Questions draw their slots without replacement, slot i = 1, 2, ... with probability proportional to a i^(a-1), and
    have the label at their last token. All other positions hold filler: uniform random tokens of the whole vocabulary,
    or 0.

    The distribution of slots and filler is that of Arora, Eyuboglu et al., arXiv 2312.04927.
    """

    vocab_size: int
    seq_len: int
    power_a: float
    random_non_queries: bool

    def _keep_shape(self, vocab_size: int, seq_len: int, power_a: float, random_non_queries: bool) -> None:
        """Check and store the options that all tasks of the family share."""
        self.vocab_size = self._whole("vocab_size", vocab_size, 1)
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.power_a = float(power_a)
        self.random_non_queries = bool(random_non_queries)
        self._demand(self.vocab_size > self.seq_len, "vocab_size must be > seq_len", "vocab_size", "seq_len")
        self._demand(math.isfinite(self.power_a) and self.power_a > 0, "power_a must be positive", "power_a")

    def _spec(self, n_values: int, labelled: int | None, *facts: str) -> TaskSpec:
        """Return the spec for `n_values` equally likely labels and the facts `distance` and `facts`."""
        return TaskSpec.tokens(
            self.seq_len, self.vocab_size, chance=1 / n_values, labelled=labelled, facts=("distance", *facts)
        )

    def _ask(
        self,
        rng: np.random.Generator,
        context: np.ndarray,
        questions: np.ndarray,
        answers: np.ndarray,
        given: np.ndarray,
        facts: dict[str, np.ndarray],
        counts: np.ndarray | None = None,
        fewest: int | None = None,
    ) -> Arrays:
        """Place the questions after the context, and fill the remaining positions.

        Args:
            rng: source of randomness.
            context: tokens (n, longest context).
            questions: tokens (n, n_questions, width).
            answers: labels (n, n_questions).
            given: positions of the answers in the context; broadcast to (n, n_questions), as are `facts`.
            facts: additional facts of each question.
            counts: number of questions of each example (n,), at least 1, which also shortens the context; default: all.
            fewest: lower bound of `counts`.

        Returns:
            Inputs, labels, distance (from a label back to its answer) and the facts.
        """
        n, n_questions, width = questions.shape
        slot, longest = width + 1, context.shape[1]
        per_question = longest // n_questions
        shortest = longest if fewest is None else per_question * fewest
        lengths = np.full(n, longest) if counts is None else per_question * counts
        slot_law = np.arange(1, (self.seq_len - shortest) // slot + 1) ** (self.power_a - 1)
        if counts is not None:
            n_slots = (self.seq_len - lengths) // slot
            slot_law = np.where(np.arange(len(slot_law)) < n_slots[:, None], slot_law, 0.0)
        asked = lengths[:, None] + slot * weighted_distinct(rng, n, slot_law, n_questions) + width - 1
        facts = {
            name: np.broadcast_to(fact, asked.shape) for name, fact in {"distance": asked - given, **facts}.items()
        }
        if counts is not None:
            # A surplus question becomes a copy of the first one, at the same position, and so changes nothing.
            place = np.arange(n_questions)
            place = np.where(place < counts[:, None], place, 0)
            asked, answers = np.take_along_axis(asked, place, axis=1), np.take_along_axis(answers, place, axis=1)
            questions = np.take_along_axis(questions, place[:, :, None], axis=1)
            facts = {name: np.take_along_axis(fact, place, axis=1) for name, fact in facts.items()}

        if self.random_non_queries:
            inputs = rng.integers(self.vocab_size, size=(n, self.seq_len))
        else:
            inputs = np.zeros((n, self.seq_len), dtype=np.int64)
        np.copyto(inputs[:, :longest], context, where=np.arange(longest) < lengths[:, None])
        for back in range(width):
            np.put_along_axis(inputs, asked - back, questions[:, :, width - 1 - back], axis=1)
        return {
            "inputs": inputs,
            "labels": labels_at(asked, answers, self.seq_len),
            **{name: fact_at(asked, fact, self.seq_len) for name, fact in facts.items()},
        }
