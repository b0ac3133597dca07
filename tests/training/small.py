"""Small tasks, a small model and a quiet trainer for the tests of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from tasks.base import Arrays, Task
from tasks.datamodule import TaskDataModule
from tasks.spec import TaskSpec
from zoo.training import AtomicCheckpointIO, Checkpoints, NonFiniteLoss, ReseedEachStep, SequenceModule

VOCABULARY, SEQ_LEN, CLASSES = 12, 8, 4


class Echo(Task):
    """Predict, from the fifth position on, the class (token modulo 4) of the token four positions back."""

    name = "echo"

    def __init__(self, seq_len: int = SEQ_LEN) -> None:
        self.seq_len = seq_len

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(self.seq_len, VOCABULARY, CLASSES, labelled=self.seq_len - 4, facts=("distance",))

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.integers(VOCABULARY, size=(n, self.seq_len))
        labels = np.full_like(inputs, -100)
        labels[:, 4:] = inputs[:, :-4] % CLASSES
        return {"inputs": inputs, "labels": labels, "distance": np.where(labels < 0, -1, 4)}


class Scale(Task):
    """Regress twice the input vector."""

    name = "scale"

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(input="vectors", seq_len=SEQ_LEN, n_outputs=3, loss="mse", d_input=3)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        inputs = rng.standard_normal((n, SEQ_LEN, 3)).astype(np.float32)
        return {"inputs": inputs, "labels": 2 * inputs}


class NoisyModule(SequenceModule):
    """Draws random numbers in training and validation: runs that validate at other steps differ without reseeding."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        noise = torch.rand(())
        self.draws = [*getattr(self, "draws", []), float(noise)]
        return super().training_step(batch, batch_idx) * (1 + noise)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.rand(3)
        super().validation_step(batch, batch_idx)


def data(folder: Path, task: Task | None = None, **options: Any) -> TaskDataModule:
    sizes = {"n_train": 40, "n_val": 10, "n_test": 10, "batch_size": 8}
    return TaskDataModule(task or Echo(), cache_dir=folder / "cache", **{**sizes, **options})


def module(cls: Callable[..., SequenceModule] = SequenceModule, task: Task | None = None, **options: Any) -> Any:
    spec = (task or Echo()).spec
    defaults = {
        "mixer": {"name": "attention", "n_heads": 2},
        "d_model": 16,
        "n_layers": 1,
        "warmup_steps": 2,
        "vocab_size": spec.vocab_size,
        "d_input": spec.d_input,
        "n_outputs": spec.n_outputs,
        "loss": spec.loss,
        "facts": spec.facts,
    }
    return cls(**{**defaults, **options})


def trainer(folder: Path, *callbacks: L.Callback, logger: Logger | bool = False, **options: Any) -> L.Trainer:
    """A trainer with the callbacks of every run, and by default with `Checkpoints`."""
    checkpoints = next((c for c in callbacks if isinstance(c, Checkpoints)), None)
    own = [] if checkpoints else [Checkpoints(folder / "checkpoints")]
    validated = {"val_check_interval": 5, "check_val_every_n_epoch": None}  # one epoch of `data`
    options = {"max_steps": 4, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1, **validated, **options}
    return L.Trainer(
        callbacks=[*own, ReseedEachStep(0), NonFiniteLoss(), *callbacks],
        plugins=[AtomicCheckpointIO()],
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def tensorboard(folder: Path, **options: Any) -> TensorBoardLogger:
    """A logger whose event file TensorBoard reads after the existing ones."""
    next_second(folder)
    return TensorBoardLogger(folder, name="", version="", default_hp_metric=False, **options)


def next_second(folder: Path) -> None:
    """Wait until a new event file sorts after the existing ones by name, as TensorBoard sorts them.

    Names have the second, host, process and a counter: within a second and process 100 would sort before 99.
    """
    while any(int(file.name.split(".")[3]) >= int(time.time()) for file in folder.glob("events.*")):
        time.sleep(0.02)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """{tag: [(step, value), ...]} of every scalar that TensorBoard reads from the folder."""
    found = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def judged(
    folder: Path, task: Task, n_test: int = 11, **options: Any
) -> tuple[SequenceModule, dict[str, Any], Tensor, Arrays]:
    """Test an untrained module on the task, and return it, its results, its outputs and the test examples."""
    model, source = module(task=task, **options), data(folder, task, n_test=n_test)
    trainer(folder).test(model, datamodule=source, verbose=False)
    arrays = source.split("test")
    inputs = torch.from_numpy(arrays["inputs"])
    with torch.no_grad():
        outputs = model.eval()(inputs if inputs.is_floating_point() else inputs.long())
    return model, model.results["test"], outputs, arrays


def logged_by(model: Any) -> dict[str, float]:
    """Collect the metrics that a module without a trainer logs from now on."""
    logged: dict[str, float] = {}
    model.log = lambda name, value, **_: logged.update({name: float(value)})
    model.log_dict = lambda values: logged.update({name: float(value) for name, value in values.items()})
    return logged


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def assert_identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
