"""Examples of a run's task, on which the model that the run trained can be measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lab.build import build_task
from lab.run.record import read_config
from zoo.report.numbers import count

if TYPE_CHECKING:
    from torch import Tensor


class Examples(NamedTuple):
    """Sequences of a split and their labels at each position.

    Attributes:
        task: its name, and of a mixture which of its shapes.
        loss: cross_entropy, with classes as labels and -100 where there is none, or mse, with numbers and NaN.
        inputs: (n, seq) tokens or (n, seq, d_input) vectors.
        labels: (n, seq) classes or (n, seq, n_outputs) numbers.
        chance: accuracy without the input; None for numbers.
    """

    task: str
    loss: str
    inputs: Tensor
    labels: Tensor
    chance: float | None


def examples(run_dir: Path, split: str, n: int) -> Examples:
    """Return the first `n` examples of a split of the task that a run was trained on, or all if the split has fewer.

    Args:
        run_dir: folder of the run.
        split: "train", "validation" or "test".
        n: how many.

    Raises:
        ValueError: no run of train.py is there, or its task cannot be made here.
    """
    import torch

    from tasks.data.splits import at_most, sample_split

    config = read_config(run_dir)
    task = build_task(config)
    arrays = sample_split(task, split, at_most(task, split, n), config["seed"])
    mixture = config["task"].get("mixture")
    name = task.name if mixture is None else f"{task.name}, the longest of {count(len(mixture), 'shape')}"
    inputs, labels = (torch.from_numpy(arrays[key]) for key in ("inputs", "labels"))
    return Examples(name, task.spec.loss, inputs, labels, task.spec.chance)
