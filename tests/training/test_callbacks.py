"""Callbacks: what stops a run, what is reseeded, what is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from tests.training import small
from zoo.interop.saved import check_checkpoint, load
from zoo.training import Checkpoints, NonFiniteLossError, Reached, ReseedEachStep, SequenceModule, Throughput


class BreaksAt(SequenceModule):
    """Its loss is not a number at one step, through no fault of its weights."""

    step, value = 6, float("nan")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if self.trainer.global_step == self.step else loss


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * float("inf")


class BadGradientAt(SequenceModule):
    """Its loss is fine and its gradient is not, at step 6: the weights are spoilt before any loss shows it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return BadGradient.apply(loss) if self.trainer.global_step == 6 else loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_step(tmp_path: Path, value: float) -> None:
    module = small.module(BreaksAt)
    module.value = value
    trainer = small.trainer(tmp_path, Checkpoints(tmp_path / "checkpoints", every_n_steps=4), max_steps=20)
    with pytest.raises(NonFiniteLossError, match=f"the loss is {value} at step 6") as caught:
        trainer.fit(module, datamodule=small.data(tmp_path))
    assert caught.value.step == 6
    assert "\n" not in str(caught.value)
    assert all(p.isfinite().all() for p in module.parameters())
    assert check_checkpoint(tmp_path / "checkpoints/last.ckpt", {"name": "attention"}) == 5  # after the validation


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    trainer = small.trainer(
        tmp_path, Checkpoints(tmp_path / "checkpoints", every_n_steps=1), max_steps=20, val_check_interval=1
    )
    with pytest.raises(NonFiniteLossError, match="is not finite at step 7") as caught:
        trainer.fit(small.module(BadGradientAt), datamodule=small.data(tmp_path))
    assert caught.value.step == 7
    for name in ("best", "last"):
        model = load(tmp_path, name)
        assert all(p.isfinite().all() for p in model.parameters())
    assert check_checkpoint(tmp_path / "checkpoints/last.ckpt", {"name": "attention"}) == 6


def place(index: int, rank: int = 0, world_size: int = 1) -> Any:
    progress = SimpleNamespace(total=SimpleNamespace(completed=index))
    fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    return SimpleNamespace(fit_loop=fit_loop, global_rank=rank, world_size=world_size)


def test_each_place_has_a_stream_of_its_own(unchecked_shapes: None) -> None:
    module: Any = SimpleNamespace(device=torch.device("cpu"))
    draws = {}
    for seed in (0, 1):
        reseed = ReseedEachStep(seed)
        for index in (0, 1, 2):
            for rank, world in ((0, 1), (0, 2), (1, 2)):
                trainer = place(index, rank, world)
                reseed.on_train_batch_start(trainer, module, None, 0)
                draws["train", seed, index, rank, world] = torch.rand(()).item()
                reseed.on_validation_batch_start(trainer, module, None, index)
                draws["val", seed, index, rank, world] = torch.rand(()).item()
                reseed.on_test_batch_start(trainer, module, None, index)
                draws["test", seed, index, rank, world] = torch.rand(()).item()
    assert len(set(draws.values())) == len(draws) == 54
    torch.rand(5)
    ReseedEachStep(1).on_train_batch_start(place(2), module, None, 0)
    assert torch.rand(()).item() == draws["train", 1, 2, 0, 1]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        ReseedEachStep(-1)


class Idle(L.Callback):
    """Waste time where a training step does not."""

    def on_validation_start(self, *args: Any) -> None:
        time.sleep(0.05)


@pytest.mark.parametrize(("more", "values", "step"), [(True, (0.1, 0.9, 0.8), 2), (False, (0.5, 0.3, 0.1), 3)])
def test_the_first_step_at_a_level_is_noted_and_kept(more: bool, values: Sequence[float], step: int) -> None:
    callback, never = Reached("val/accuracy", 0.9 if more else 0.1, more), Reached("val/accuracy", None, more)
    for i, value in enumerate(values, 1):
        again = Reached(callback.monitor, callback.level, more)  # as after a resumption
        again.load_state_dict(callback.state_dict())
        callback = again
        callback.note(i, value)
        never.note(i, value)
    assert (callback.step, never.step) == (step, None)


def test_throughput_counts_training_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    # One tick at the start and one at the end of each stretch: a stretch lasts one second.
    monkeypatch.setattr("zoo.training.callbacks._now", lambda device: float(next(clock)))
    throughput, logger = Throughput(), small.tensorboard(tmp_path)
    trainer = small.trainer(tmp_path, throughput, logger=logger, max_steps=9, log_every_n_steps=3, val_check_interval=5)
    assert throughput.tokens_per_second is None
    trainer.fit(small.module(), datamodule=small.data(tmp_path))
    # Steps 2-3, 4-5 (a validation ends it), 6, 7-9: eight steps of 8 x 8 tokens in four stretches.
    assert throughput.tokens_per_second == 8 * 64 / 4
    assert [value for _, value in small.curves(tmp_path)["tokens_per_second"]] == [2 * 64, 64, 3 * 64]
