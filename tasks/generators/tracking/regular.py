"""Base of the regular languages of the Chomsky-hierarchy suite: one answer at the end, or one for every prefix."""

from __future__ import annotations

import numpy as np

from tasks.base import Task
from tasks.generators.placing import LAST, labels_at
from tasks.spec import TaskSpec


class Regular(Task):
    """A finite automaton read from left to right, asked for its answer at the last position or at every one.

    Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy", arXiv 2207.02098, the tasks under
    `tasks/regular` of google-deepmind/neural_networks_chomsky_hierarchy; there only the answer at the end is asked for.
    """

    seq_len: int
    every_position: bool

    def _regular_spec(self, vocab_size: int, by_answer: np.ndarray) -> TaskSpec:
        """Return the spec, from the probabilities (answerable positions, classes) of the answers."""
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
