"""A run that is stopped and resumed is bitwise equal to an uninterrupted one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from lightning.pytorch.callbacks import EarlyStopping

from tests import slow
from tests.training import small
from zoo.loading.saved import check_checkpoint
from zoo.training import Checkpoints

# 40 rows in batches of 8 make five batches per pass; validation follows each pass by default. Every case runs for more
# than two passes, and is resumed from three steps. All but the last three cases are a single epoch.
CASES = {
    "no validation": {"limit_val_batches": 0},
    "validation across passes": {"val_check_interval": 3},
    "validation after a share of the run": {"val_check_interval": 0.25, "check_val_every_n_epoch": 1},
    "accumulation, validation within": {"accumulate_grad_batches": 2, "val_check_interval": 3, "max_steps": 7},
    "a mixture": {"mixture": [{}, {"seq_len": 12, "weight": 1.5}], "val_check_interval": 2},
    "a mixture of fresh examples": {"mixture": [{"seq_len": 5}, {"seq_len": 12}], "fresh": True},
    "fresh examples, accumulation": {"fresh": True, "accumulate_grad_batches": 2, "max_steps": 7},
    "short epochs": {"limit_train_batches": 3, "val_check_interval": 2},
    "epochs, not steps": {"max_steps": -1, "max_epochs": 2},
    "every second epoch": {"max_epochs": 3, "val_check_interval": 1.0, "check_val_every_n_epoch": 2},
}
QUICK = "accumulation, validation within"
"""The case in the default run; the others are slow tests."""


class Keep(L.Callback):
    """Copy `last` after each step: a process killed right after that save would leave this file."""

    def __init__(self, last: Path, folder: Path) -> None:
        self.last, self.folder = last, folder

    def on_train_batch_end(self, *args: Any) -> None:
        if self.last.exists():
            self.folder.mkdir(exist_ok=True)
            shutil.copy(self.last, self.folder / f"{check_checkpoint(self.last, {'name': 'attention'})}.ckpt")


class Record(L.Callback):
    """Records the loss of each micro-batch, and the validation loss after some of them."""

    def __init__(self) -> None:
        self.validated: dict[int, float] = {}
        self.lost: dict[int, float] = {}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        micro_batch = trainer.fit_loop.epoch_loop.batch_progress.total.completed
        assert micro_batch not in self.lost
        self.lost[micro_batch] = float(outputs["loss"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            micro_batch = trainer.fit_loop.epoch_loop.batch_progress.total.completed - 1
            assert micro_batch not in self.validated
            self.validated[micro_batch] = float(trainer.callback_metrics["val/loss"])


def fit(
    folder: Path,
    *callbacks: L.Callback,
    ckpt_path: Path | None = None,
    every_n_steps: int = 1,
    fresh: bool = False,
    mixture: list[dict[str, Any]] | None = None,
    **options: Any,
) -> tuple[small.NoisyModule, Record, Checkpoints, L.Trainer]:
    module, record = small.module(small.NoisyModule), Record()
    checkpoints = Checkpoints(folder / "checkpoints", every_n_steps=every_n_steps)
    trainer = small.trainer(folder, checkpoints, record, *callbacks, **{"max_steps": 12, **options})
    trainer.fit(module, datamodule=small.data(folder.parent, fresh=fresh, mixture=mixture), ckpt_path=ckpt_path)
    return module, record, checkpoints, trainer


@pytest.mark.parametrize("case", [slow(case, unless=case == QUICK) for case in CASES])
def test_resuming_from_a_random_step_gives_the_same_run(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.data.splits.SHARD_ROWS", 24)  # blocks of three batches of fresh examples
    options, kept, draw = CASES[case], tmp_path / "kept", np.random.default_rng(0)
    whole, expected, expected_best, whole_trainer = fit(
        tmp_path / "whole", Keep(tmp_path / "whole/checkpoints/last.ckpt", kept), **options
    )
    files = sorted(kept.glob("*.ckpt"), key=lambda p: int(p.stem))
    assert len(files) >= 6
    for file in draw.choice(files, 3, replace=False):
        resumed, record, best, trainer = fit(tmp_path / file.stem, ckpt_path=file, **options)
        first = min(record.lost)
        small.assert_identical(small.weights(whole), small.weights(resumed))
        assert record.lost == {m: x for m, x in expected.lost.items() if m >= first}
        assert record.validated == {m: x for m, x in expected.validated.items() if m >= first}
        assert resumed.draws == whole.draws[first:]
        assert (best.best_score, best.best_step) == (expected_best.best_score, expected_best.best_step)
        assert (trainer.global_step, trainer.current_epoch) == (whole_trainer.global_step, whole_trainer.current_epoch)


def test_a_finished_run_with_more_steps_resumes_within_its_epoch(tmp_path: Path) -> None:
    _, expected, *_ = fit(tmp_path / "whole", max_steps=12)
    _, half, *_ = fit(tmp_path / "half", max_steps=7)
    _, rest, *_ = fit(tmp_path / "rest", ckpt_path=tmp_path / "half/checkpoints/last.ckpt", max_steps=12)
    assert list(half.lost) + list(rest.lost) == list(expected.lost)


class StopAt(EarlyStopping):
    """Stop after the second validation."""

    def __init__(self) -> None:
        super().__init__("val/loss", patience=1, min_delta=1e9, check_on_train_epoch_end=False)


@pytest.mark.parametrize("checkpoint", ["last", "previous"])
def test_a_run_that_was_stopped_early_stays_stopped(tmp_path: Path, checkpoint: str) -> None:
    options = {"val_check_interval": 2, "every_n_steps": 100}
    whole, expected, best, trainer = fit(tmp_path / "run", StopAt(), **options)
    assert trainer.global_step == 4 == len(expected.lost)
    file = tmp_path / f"run/checkpoints/{checkpoint}.ckpt"
    resumed, record, again, trainer = fit(tmp_path / "again", StopAt(), ckpt_path=file, **options)
    small.assert_identical(small.weights(whole), small.weights(resumed))
    assert list(record.lost) == ([] if checkpoint == "last" else [2, 3])
    assert (trainer.global_step, again.best_step) == (4, best.best_step)
