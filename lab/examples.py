"""Draw examples of a run's task to measure its model on; `zoo heads` calls this through an entry point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lab.build import build_task
from lab.run.record import read_config
from zoo.loading.names import CHECKPOINTS
from zoo.report.numbers import count

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.backbone import Backbone
    from zoo.theory.model_inputs import ModelInputs


class Examples(NamedTuple):
    """Sequences of a split, with a label at each position.

    Attributes:
        task: name of the task, with the shape of a mixture.
        loss: cross_entropy, with classes as labels and -100 for no label, or mse, with numbers and NaN.
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
        n: number of examples.

    Raises:
        ValueError: the folder is not a run of train.py, its task cannot be built here, or some examples are padded.
    """
    import torch

    from tasks.data.splits import at_most, sample_split

    config = read_config(run_dir)
    task = build_task(config)
    arrays = sample_split(task, split, at_most(task, split, n), config["seed"])
    if "lengths" in arrays and arrays["lengths"].min() < task.spec.seq_len:
        raise ValueError(
            f"{task.name} has rows of several lengths, but a model is measured on sequences without padding: "
            "give zoo heads --inputs with sequences of one length"
        )
    mixture = config["task"].get("mixture")
    name = task.name if mixture is None else f"{task.name}, the longest of {count(len(mixture), 'shape')}"
    inputs, labels = (torch.from_numpy(arrays[key]) for key in ("inputs", "labels"))
    return Examples(name, task.spec.loss, inputs, labels, task.spec.chance)


def inputs_of_run(
    path: str, model: Backbone, seq_len: int | None, n_inputs: int, n_others: int | None
) -> ModelInputs | None:
    """Return validation sequences of a run's task, and test sequences with their labels; None if there is no run.

    The arguments are those of `zoo.theory.model_inputs.model_inputs`.

    Raises:
        ValueError: seq_len is given, although the task sets the length; any error of `examples`.
    """
    from zoo.theory.budget import others_within
    from zoo.theory.model_inputs import labelled

    if not (Path(path) / CHECKPOINTS).is_dir():
        return None
    if seq_len is not None:
        raise ValueError(f"the task of a run sets the length: leave out seq_len={seq_len}")
    read = examples(Path(path), "validation", n_inputs)
    scored = examples(Path(path), "test", n_others or others_within(model, read.inputs.shape[1], n_inputs))
    where = f"{count(len(read.inputs), 'sequence')} of {read.task}"
    return labelled(read.inputs, scored.inputs, scored.labels, where, scored.chance, scored.loss == "mse")
