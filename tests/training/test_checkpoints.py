"""Checkpoint files: written atomically, `best` by the metric, `last` every n steps and when a signal stops the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from tests.training import small
from zoo.loading.saved import check_checkpoint, load, read_checkpoint
from zoo.training import AtomicCheckpointIO, Checkpoints, Interrupt, Interrupted, NonFiniteLossError

ATTENTION = {"name": "attention"}


class Signal(L.Callback):
    """Send SIGINT to this process at one step."""

    def __init__(self, step: int, hook: str = "on_train_batch_end", times: int = 1) -> None:
        self.step, self.times = step, times
        setattr(self, hook, self._send)

    def _send(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and not trainer.sanity_checking:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
            self.times = 0


def interrupted(folder: Path, *callbacks: L.Callback, **options: Any) -> Interrupted:
    checkpoints = Checkpoints(folder / "checkpoints", every_n_steps=100)
    trainer = small.trainer(folder, checkpoints, Interrupt(checkpoints), *callbacks, **{"max_steps": 12, **options})
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught:
        trainer.fit(small.module(small.NoisyModule), datamodule=small.data(folder.parent))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    return caught.value


def test_a_signal_during_validation_lets_it_finish(tmp_path: Path) -> None:
    stop = interrupted(tmp_path / "run", Signal(5, hook="on_validation_batch_start"))
    assert stop.step == 5
    saved = read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")
    assert saved["callbacks"]["Checkpoints"]["best_step"] == 5


def test_a_signal_within_accumulation_waits_for_the_step(tmp_path: Path) -> None:
    # The third micro-batch starts an accumulation, which ends with the fourth.
    class AtThird(Signal):
        def _send(self, trainer: L.Trainer, *args: Any) -> None:
            if trainer.fit_loop.total_batch_idx == 2:
                os.kill(os.getpid(), signal.SIGINT)

    stop = interrupted(tmp_path / "run", AtThird(0), accumulate_grad_batches=2)
    assert stop.step == check_checkpoint(tmp_path / "run/checkpoints/last.ckpt", ATTENTION) == 2


@pytest.mark.parametrize(("step", "kept"), [(7, 5), (2, None)])
def test_a_second_signal_stops_at_once_and_keeps_the_last_checkpoint(tmp_path: Path, step: int, kept: int) -> None:
    stop = interrupted(tmp_path / "run", Signal(step, times=2))
    assert (stop.signal, stop.step) == (signal.SIGINT, step)
    assert (stop.checkpoint and check_checkpoint(stop.checkpoint, ATTENTION)) == kept  # step 5 was saved at validation


class Scripted(small.SequenceModule):
    """Logs a given validation loss."""

    losses: tuple[float, ...] = ()

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("scripted", self.losses[self.trainer.global_step - 1])


@pytest.mark.parametrize(
    ("losses", "mode", "best_step"),
    [
        ((3.0, 1.0, float("nan"), 2.0, 1.0, 0.5), "min", 6),
        ((2.0, 1.0, 1.0, 2.0, 2.0, 2.0), "max", 1),
        ((float("nan"), 2.0, 1.0, 1.0, 2.0, 2.0), "min", 3),
    ],
)
def test_best_is_by_the_metric(
    tmp_path: Path, losses: tuple[float, ...], mode: Any, best_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "losses", losses)
    checkpoints = Checkpoints(tmp_path / "checkpoints", "scripted", mode)
    trainer = small.trainer(tmp_path, checkpoints, max_steps=6, val_check_interval=1)
    trainer.fit(small.module(Scripted), datamodule=small.data(tmp_path))
    assert (checkpoints.best_step, checkpoints.best_score) == (best_step, losses[best_step - 1])
    assert check_checkpoint(checkpoints.best, ATTENTION) == best_step
    assert check_checkpoint(checkpoints.last, ATTENTION) == 6
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]


class Spoil(L.Callback):
    """Write a number into one weight after step 3."""

    def __init__(self, number: float) -> None:
        self.number = number

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step == 3:
            with torch.no_grad():
                next(pl_module.parameters()).view(-1)[1] = self.number


@pytest.mark.parametrize("number", [float("-inf"), float("nan")])
def test_non_finite_weights_stop_the_run_and_are_never_saved(tmp_path: Path, number: float) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", every_n_steps=1)
    trainer = small.trainer(tmp_path, checkpoints, Spoil(number), max_steps=5, val_check_interval=1)
    with pytest.raises(NonFiniteLossError, match="is not finite at step 3: training stopped") as caught:
        trainer.fit(small.module(), datamodule=small.data(tmp_path))
    assert caught.value.step == 3
    assert check_checkpoint(checkpoints.last, ATTENTION) == 2
    for name in ("best", "last"):
        assert all(p.isfinite().all() for p in load(tmp_path, name).parameters())


def test_monitoring_a_metric_that_is_not_logged_is_refused(tmp_path: Path) -> None:
    trainer = small.trainer(tmp_path, Checkpoints(tmp_path / "checkpoints", "val/acc"), val_check_interval=1)
    with pytest.raises(ValueError, match=r"monitor 'val/acc', which is not logged; choose from: .*val/accuracy"):
        trainer.fit(small.module(), datamodule=small.data(tmp_path))


def test_last_is_written_every_n_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[str, int]] = []

    def spy(self: Any, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        saved.append((Path(path).stem, checkpoint["global_step"]))

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", spy)
    checkpoints = Checkpoints(tmp_path / "checkpoints", every_n_steps=3)
    small.trainer(tmp_path, checkpoints, max_steps=11).fit(small.module(), datamodule=small.data(tmp_path))
    assert [step for name, step in saved if name == "last"] == [3, 5, 6, 9, 10, 11]  # 5 and 10 are validations


def test_validation_or_test_alone_saves_nothing(tmp_path: Path) -> None:
    trainer = small.trainer(tmp_path)
    trainer.validate(small.module(), datamodule=small.data(tmp_path), verbose=False)
    trainer.test(small.module(), datamodule=small.data(tmp_path), verbose=False)
    assert not (tmp_path / "checkpoints").exists()


def test_checkpoints_refuses_other_lightning_modules(tmp_path: Path) -> None:
    trainer = L.Trainer(callbacks=[Checkpoints(tmp_path)], logger=False, accelerator="cpu", max_steps=1)
    with pytest.raises(TypeError, match="Checkpoints needs a SequenceModule, got BoringModel"):
        trainer.fit(BoringModel())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every_n_steps": 0}, "every_n_steps must be a positive integer"), ({"mode": "least"}, "unknown mode 'least'")],
)
def test_bad_options_are_refused(tmp_path: Path, unchecked_shapes: None, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, **options)
