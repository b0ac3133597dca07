"""The linear teacher: white inputs, and one system at every length."""

from __future__ import annotations

import numpy as np
import torch

import tasks
from tests.tolerances import tolerance


def test_the_teachers_input_is_white(rng: np.random.Generator) -> None:
    x = tasks.create_task("ssm_teacher", seq_len=4, d_input=3).sample(rng, 20_000)["inputs"].reshape(20_000, -1)
    np.testing.assert_allclose(x.T @ x / len(x), np.eye(12), atol=5 / np.sqrt(len(x)) * 2**0.5)


def test_a_longer_sequence_meets_the_same_teacher() -> None:
    task = tasks.create_task("ssm_teacher", k=3, seq_len=8)
    np.testing.assert_allclose(task.at_length(20).lags[:8], task.lags, **tolerance(torch.float64))
