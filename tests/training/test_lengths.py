"""Tests at other lengths: the right scores, gaps where a mixer cannot follow, figures whatever was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import create_task
from tests.training import small
from zoo.training import scores_at_lengths

TASK = create_task("needle", distance=5, n_noise=3)


def test_scores_are_those_of_the_task_at_each_length(tmp_path: Path) -> None:
    module, trainer = small.module(task=TASK), small.trainer(tmp_path, logger=True)
    data = small.data(tmp_path, TASK, n_test=40, test_lengths=[9, 30])
    trainer.test(module, datamodule=data, verbose=False)
    results, loggers = module.results, trainer.loggers
    scores = scores_at_lengths(trainer, module, data.length_batches())
    assert (module.results, trainer.loggers) == (results, loggers)
    for length in (9, 30):
        alone = small.data(tmp_path, TASK.at_length(length), n_test={9: 26, 30: 16}[length])
        found = small.trainer(tmp_path).test(module, datamodule=alone, verbose=False)[0]
        assert scores[length] == pytest.approx(found["test/accuracy"])


def test_a_length_that_the_mixer_cannot_take_is_a_gap_and_a_line(tmp_path: Path, logged: list[str]) -> None:
    module = small.module(task=TASK, mixer={"name": "factorized", "kernel": "toeplitz", "max_seq_len": 12})
    trainer, data = small.trainer(tmp_path), small.data(tmp_path, TASK, test_lengths=[10, 13])
    trainer.test(module, datamodule=data, verbose=False)
    logged.clear()
    scores = scores_at_lengths(trainer, module, data.length_batches())
    assert scores[13] is None
    assert scores[10] is not None
    assert logged == ["length 13 is not tested: sequence of 13 exceeds max_seq_len=12"]
