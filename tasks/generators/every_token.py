"""Base class of tasks whose training may label every next token, as in language modelling."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np

from tasks.base import Task

TRAIN_TARGETS = ("every_token", "answers")


class EveryToken(Task):
    """A task that scores its answers, and whose training labels the answers or every next token.

    With train_targets = "every_token", training labels each position with its next token, even if it is unpredictable;
    with "answers", only the answers. Validation and test always label only the answers; `spec` describes these.
    """

    train_targets: str
    _training = False

    def _keep_train_targets(self, train_targets: Any) -> None:
        self.train_targets = train_targets
        self._demand(train_targets in TRAIN_TARGETS, f"train_targets must be one of {', '.join(TRAIN_TARGETS)}")

    def of_split(self, split: str) -> Self:
        """Return the task with the labels of training, or with the scored labels."""
        task = copy.copy(self)
        task._training = split == "train"
        return task

    def _label_next(self, labels: np.ndarray, tokens: np.ndarray, answers: np.ndarray | bool) -> None:
        """Write next tokens into `labels`: the answers, or all tokens in training with "every_token".

        Args:
            labels: (n, seq_len), changed in place.
            tokens: (n, seq_len), or (n, seq_len + 1) if the last one is only a label.
            answers: whether each token is an answer; bool, broadcast to the shape of `tokens`.
        """
        n_next = tokens.shape[1] - 1
        every_token = self._training and self.train_targets == "every_token"
        asked = np.broadcast_to(answers, tokens.shape)[:, 1:]
        np.copyto(labels[:, :n_next], tokens[:, 1:], where=every_token | asked)
