"""Callbacks: NonFiniteLoss, Progress, ReseedEachStep, Elapsed, Throughput; a training step never waits for the GPU."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from tests import refused
from tests.cases import KINDS, Case, cases
from tests.training import small
from zoo.loading.saved import check_checkpoint
from zoo.training import (
    Checkpoints,
    Elapsed,
    NonFiniteLossError,
    Progress,
    ReseedEachStep,
    SequenceModule,
    Throughput,
)


class BreaksAt(SequenceModule):
    """Its loss is NaN or infinite at one step, although its weights are finite."""

    step, value = 6, float("nan")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if self.trainer.global_step == self.step else loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_stops_before_the_step_on_a_cpu_and_at_the_next_logged_step_on_a_gpu(
    tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = small.module(BreaksAt)
    module.value = value
    trainer = small.trainer(tmp_path, Checkpoints(tmp_path / "checkpoints", every_n_steps=4), max_steps=20)
    with refused(f"the loss is {value} at step 6", NonFiniteLossError):
        trainer.fit(module, datamodule=small.data(tmp_path))
    assert all(p.isfinite().all() for p in module.parameters())
    assert check_checkpoint(tmp_path / "checkpoints/last.ckpt", {"name": "attention"}) == 5  # after the validation
    monkeypatch.setattr("zoo.training.callbacks.readable", lambda t: False)
    module = small.module(BreaksAt)
    module.value = value
    trainer = small.trainer(tmp_path / "device", max_steps=20, log_every_n_steps=9)
    with refused(f"the loss is {value} at step 6", NonFiniteLossError):
        trainer.fit(module, datamodule=small.data(tmp_path))
    assert trainer.global_step == 9


class Meta(CPUAccelerator):
    """A device of meta tensors: reading a value, for which the host would wait on a GPU, raises an error."""

    def setup_device(self, device: torch.device) -> None: ...


class Done(Exception):
    """Raised after two steps."""


class StopAtTwo(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 2:
            raise Done


def trace_steps(folder: Path, monkeypatch: pytest.MonkeyPatch, task: small.Echo | small.Scale, **options: Any) -> None:
    """Run two training steps on meta tensors, with clipping and every callback of a run, without logging."""
    monkeypatch.setattr("lightning.pytorch.loops.fit_loop.has_len_all_ranks", lambda *_: True)
    monkeypatch.setattr(L.Trainer, "_teardown", lambda _: None)  # moves everything back to the CPU
    module = small.module(task=task, **options)
    batch = {name: torch.from_numpy(a) for name, a in task.sample(np.random.default_rng([0]), 3).items()}
    batch["lengths"] = torch.tensor([8, 5, 6])
    trainer = small.trainer(
        folder,
        *(Throughput(), Progress(50), StopAtTwo()),
        strategy=SingleDeviceStrategy(torch.device("meta"), accelerator=Meta()),
        accelerator="auto",
        gradient_clip_val=1.0,
        log_every_n_steps=50,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    batches = DataLoader([batch, batch], batch_size=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Done):
        trainer.fit(module, train_dataloaders=batches, val_dataloaders=batches)


@cases(variants=False, by_default=KINDS)
def test_a_step_of_training_never_waits_for_the_device(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"d_model": 8, "n_layers": 3, "n_experts": 2}
    trace_steps(tmp_path, monkeypatch, small.Echo(), mixer={"name": case.name}, **shape)


@pytest.mark.parametrize("shape", [{"decode_from": 4}, {"canon": "ACD"}, {"logit_cap": 3.0}], ids=str)
def test_a_step_of_regression_never_waits_for_the_device(
    shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_steps(tmp_path, monkeypatch, small.Scale(), mixer={"name": "lstm"}, **shape)


def trainer_at(index: int, rank: int = 0, world_size: int = 1) -> Any:
    trainer = MagicMock(global_rank=rank, world_size=world_size)
    trainer.fit_loop.epoch_loop.batch_progress.total.completed = index
    return trainer


def test_a_process_without_a_progress_bar_trains_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(L.Trainer, "is_global_zero", False)
    trainer = small.trainer(tmp_path, Progress(1), max_steps=2)
    trainer.fit(small.module(), datamodule=small.data(tmp_path))
    assert (trainer.global_step, capsys.readouterr().err) == (2, "")


def test_the_bar_shows_the_loss_every_n_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    monkeypatch.setattr(
        "zoo.training.progress.tqdm.set_postfix", lambda bar, values, refresh: shown.update({bar.n + 1: values})
    )
    small.trainer(tmp_path, Progress(2), max_steps=5).fit(small.module(), datamodule=small.data(tmp_path))
    assert [*shown] == [2, 4]
    assert all(float(values["loss"]) > 0 for values in shown.values())


def test_each_seed_step_and_rank_has_a_different_random_stream(unchecked_shapes: None) -> None:
    module: Any = SimpleNamespace(device=torch.device("cpu"))
    draws = {}
    for seed, index, (rank, world) in itertools.product((0, 1), (0, 1, 2), ((0, 1), (0, 2), (1, 2))):
        reseed, trainer = ReseedEachStep(seed), trainer_at(index, rank, world)
        for stage, at in (("train", 0), ("validation", index), ("test", index)):
            getattr(reseed, f"on_{stage}_batch_start")(trainer, module, None, at)
            draws[stage, seed, index, rank, world] = torch.rand(()).item()
    assert len(set(draws.values())) == len(draws) == 54
    with pytest.raises(ValueError, match=r"seed must lie in 0\.\.9223372036854775807, got -1"):
        ReseedEachStep(-1)
    torch.rand(5)
    ReseedEachStep(1).on_train_batch_start(trainer_at(2), module, None, 0)
    assert torch.rand(()).item() == draws["train", 1, 2, 0, 1]


def test_elapsed_seconds_include_those_before_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 40.0, 1000.0, 1003.0, 1010.0))
    monkeypatch.setattr("zoo.training.callbacks.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    saved = Elapsed().state_dict()
    resumed = Elapsed()
    resumed.load_state_dict(saved)
    assert resumed.seconds == 47


def test_throughput_counts_only_training_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    # Throughput reads the clock at the start and end of each stretch of training: a stretch lasts one second.
    monkeypatch.setattr("zoo.training.callbacks._now", lambda device: float(next(clock)))
    throughput, logger = Throughput(), small.tensorboard(tmp_path)
    trainer = small.trainer(tmp_path, throughput, logger=logger, max_steps=9, log_every_n_steps=3, val_check_interval=5)
    assert throughput.tokens_per_second is None
    trainer.fit(small.module(), datamodule=small.data(tmp_path))
    # Steps 2-3, 4-5 (ended by a validation), 6, 7-9: eight steps of 8 x 8 tokens in four stretches.
    assert throughput.tokens_per_second == 8 * 64 / 4
    assert [value for _, value in small.curves(tmp_path)["tokens_per_second"]] == [2 * 64, 64, 3 * 64]
