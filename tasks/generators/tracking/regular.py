"""Base class of the regular tasks of the Chomsky-hierarchy suite: one answer at the end, or one per prefix."""

from __future__ import annotations

import numpy as np

from tasks.base import Task
from tasks.generators.placing import LAST, labels_at
from tasks.spec import TaskSpec


class Regular(Task):
    """A finite automaton that reads from left to right, with its answer as the label at the last or every position.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, the tasks under
    `tasks/regular` of google-deepmind/neural_networks_chomsky_hierarchy, which label only the last position.
    """

    seq_len: int
    every_position: bool

    def _regular_spec(self, vocab_size: int, by_answer: np.ndarray) -> TaskSpec:
        """Return the spec, given the distribution of answers at each answerable position, (positions, classes)."""
        asked = by_answer if self.every_position else by_answer[-1:]
        return TaskSpec.tokens(
            self.seq_len,
            vocab_size,
            by_answer.shape[1],
            chance=float(asked.mean(axis=0).max()),
            labelled=len(asked),
        )

    def _asked(self, answers: np.ndarray) -> np.ndarray:
        """Return the answers at every position, or only at the last one."""
        return answers if self.every_position else labels_at(LAST, answers[:, -1:], self.seq_len)
