"""Lightning callbacks: reseeding, non-finite losses, validation curve, elapsed time, throughput."""

from __future__ import annotations

import hashlib
import math
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from zoo.ops.transforms import readable
from zoo.validate import require_seed

TRAIN, VALIDATION, TEST = range(3)


def is_logged(trainer: L.Trainer) -> bool:
    """Return whether to log at this step: every `log_every_n_steps` steps, or every 50 if that is 0 (no logging)."""
    every: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
    return trainer.global_step % (every or 50) == 0


class ReseedEachStep(Callback):
    """Seed torch's generators before each batch, so that a resumed run draws the same numbers as an uninterrupted one.

    The seed of a training step is a pure function of (seed, index of the micro-batch since the start of the run, rank,
    world size). Validation and test batches have separate seeds, the same at every pass.

    Args:
        seed: seed of the run.
    """

    def __init__(self, seed: int) -> None:
        require_seed(seed)
        self.seed = seed

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._reseed(trainer, pl_module.device, TRAIN, trainer.fit_loop.epoch_loop.batch_progress.total.completed)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._reseed(trainer, pl_module.device, VALIDATION, batch_idx)

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._reseed(trainer, pl_module.device, TEST, batch_idx)

    def _reseed(self, trainer: L.Trainer, device: torch.device, stream: int, index: int) -> None:
        place = (self.seed, stream, index, trainer.global_rank, trainer.world_size)
        seed = int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "big") >> 1
        # torch.manual_seed visits every backend: 200 us per step instead of 1 us.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)


class NonFiniteLossError(RuntimeError):
    """The loss or a weight is NaN or infinite; `step` is the number of optimizer steps completed before."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what} at step {step}: training stopped; the checkpoints are from earlier steps")
        self.step = step


class NonFiniteLoss(Callback):
    """Stop training at the first NaN or infinite loss; on the CPU before it reaches the weights.

    On other devices reading the loss would make the host wait in every step. So the device records the first such loss,
    and we read it every `log_every_n_steps` steps and at the end. `Checkpoints` saves no weights that are not finite.

    Raises:
        NonFiniteLossError: from `Trainer.fit`, with the step.
    """

    def __init__(self) -> None:
        self._noted: Tensor | None = None  # (2,) loss and step: of the first non-finite loss, else of the latest loss

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        # The mean over the processes, so that all of them stop and none waits for another.
        mean = trainer.strategy.reduce(loss.detach().clone())
        assert isinstance(mean, Tensor)
        now = torch.stack((mean, torch.full_like(mean, trainer.global_step)))
        self._noted = now if self._noted is None else torch.where(self._noted[0].isfinite(), now, self._noted)
        if readable(mean):
            self._read()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_logged(trainer):
            self._read()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._read()

    def _read(self) -> None:
        if self._noted is not None:
            loss, step = self._noted.tolist()
            if not math.isfinite(loss):
                raise NonFiniteLossError(f"the loss is {loss}", int(step))


class ValidationCurve(Callback):
    """Record a validation score of a `SequenceModule` by optimizer step in `points`, which a resumed run continues.

    Args:
        score: name of the score in the module's results.
    """

    def __init__(self, score: str) -> None:
        self.score = score
        self.points: dict[int, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"points": dict(self.points)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.points = dict(state_dict["points"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        results: Any = getattr(pl_module, "results", {})
        if (value := results.get("val", {}).get(self.score)) is not None:
            self.points[trainer.global_step] = value


class Elapsed(Callback):
    """Measure the seconds of a run, including earlier processes of a resumed run up to their last checkpoints."""

    def __init__(self) -> None:
        self._earlier, self._begun = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._earlier + time.perf_counter() - self._begun

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._earlier, self._begun = state_dict["seconds"], time.perf_counter()


class Throughput(Callback):
    """Measure tokens (positions) per second in training, without validation and without the first step, a warm-up.

    Logs `tokens_per_second` since the last log or validation; the attribute `tokens_per_second` covers the whole run.
    """

    def __init__(self) -> None:
        self._tokens = self._stretch_tokens = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._warm = False

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over the whole run so far; None before the second step."""
        return self._tokens / self._seconds if self._seconds else None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._warm and self._since is None:
            self._since = _now(pl_module.device)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._warm = True
        if self._since is None:
            return
        batch_size, seq_len = batch["inputs"].shape[:2]
        self._stretch_tokens += batch_size * seq_len * trainer.world_size
        if is_logged(trainer):
            pl_module.log("tokens_per_second", self._end_stretch(pl_module.device), rank_zero_only=True)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end_stretch(pl_module.device)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end_stretch(pl_module.device)

    def _end_stretch(self, device: torch.device) -> float:
        if self._since is None or not self._stretch_tokens:
            return 0.0
        seconds, tokens = _now(device) - self._since, self._stretch_tokens
        self._seconds += seconds
        self._tokens += tokens
        self._since, self._stretch_tokens = None, 0
        return tokens / seconds


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
