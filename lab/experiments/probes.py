"""Probes measure columns of the list of runs on models, instead of reading them from metrics.

The version of a probe is part of a frozen prediction: increase it whenever its numbers change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.build import build, build_task
from lab.run.files import HEADS
from lab.run.record import Run
from zoo.report.files import read_json, write_atomically
from zoo.report.terminal import progress

if TYPE_CHECKING:
    import torch

MODEL_DRAWS, LAYER_DRAWS, HELD = 4, 5, 4096
"""Random models and random layers for gradients; sequences for `held_weights`."""
READ_AT, SCORED_ON = 16, 256
"""Sequences on which to read a layer's operators, and others on which to score the truncated model."""

DISTILLED_TO = (1, 2, 4)
"""Numbers of heads into which to distil a trained layer."""
_DISTILLED = ("bound", "error of best heads", "error of fitted heads")


@dataclass(frozen=True)
class Probe:
    """A measurement on the model of a run.

    Attributes:
        version: version of its definition.
        columns: names of its columns.
        measure: function that returns the columns' numbers for a run.
        by_seed: whether to measure every seed; otherwise only the first run of each configuration.
    """

    version: int
    columns: tuple[str, ...]
    measure: Callable[[Run], Sequence[float]]
    by_seed: bool = False


def head_count_bound(run: Run) -> tuple[float]:
    """Return the least relative squared error with the run's number of heads; zero with at least the task's k."""
    floors: Any = build_task(run.config).floors()["floor_at_heads"]
    return (floors.get(str(run.config["mixer"].get("n_heads", 1)), 0.0),)


def gradient(run: Run) -> tuple[float]:
    """Measure |d y_n / d x_{n - distance}| / |d y_n / d x_n| of the untrained model, as the lower median over draws.

    In float64, because recurrences that accumulate decays in float32 have a spurious floor near 1e-9.
    """
    import torch

    distance, d_model = run.config["task"]["distance"], run.config["d_model"]

    def embeddings(generator: torch.Generator, _: int) -> torch.Tensor:
        # The scale of the backbone's embedding, which sets the share of the input in the residual stream.
        return 0.02 * torch.randn(distance + 1, d_model, generator=generator, dtype=torch.float64)

    return (_ratio(lambda seed: build(run.config)[1].double(), embeddings, distance, distance + 1, MODEL_DRAWS),)


def layer_gradient(run: Run) -> tuple[float]:
    """Measure the ratio of `gradient` for one untrained layer, at half the sequence length, on Gaussian vectors."""
    from zoo.registry import create_mixer

    seq_len = run.config["task"]["seq_len"]

    def make(seed: int) -> torch.nn.Module:
        return create_mixer(**run.config["mixer"], d_model=run.config["d_model"]).double()

    return (_ratio(make, None, seq_len // 2, seq_len, LAYER_DRAWS),)


def _ratio(make: Callable[[int], Any], make_input: Any, distance: int, seq_len: int, n_draws: int) -> float:
    from zoo.theory import gradient_profile

    profile = gradient_profile(make, make_input, [0, distance], n_draws, seq_len=seq_len)
    here, far = profile.values.double().unbind(1)
    return float((far / here).median())


def heads(run: Run) -> tuple[float, float, float]:
    """Count the operators that a model's only layer needs, by `zoo heads`; the result is kept in the run's folder.

    Returns:
        The number of operators that retains 99 % of the accuracy, the number that copies the layer to 10 %, and the
        accuracy without operators.
    """
    file = run.folder / HEADS
    if not file.is_file():
        from lab.examples import inputs_of_run
        from zoo.loading.saved import load
        from zoo.theory.model_heads import measure_heads
        from zoo.theory.model_heads_page import Reading, heads_as_json

        model = load(run.folder)
        found = inputs_of_run(str(run.folder), model, None, READ_AT, SCORED_ON)
        assert found is not None
        rows = measure_heads(model, found.inputs, found.others, found.score)
        reading = Reading(str(run.folder), found.where, found.scored, found.chance)
        write_atomically(file, heads_as_json(rows, reading))
    (layer,) = read_json(file)["layers"]
    # If no smaller number suffices, the layer needs its rank, at which the operators reproduce it.
    needed = layer["rank"] if layer["functional_heads"] is None else layer["functional_heads"]
    return needed, layer["heads"]["0.1"], layer["score_by_heads"]["0"]


def held_weights(run: Run) -> tuple[float]:
    """Measure how the error changes if all values but the queried one are redrawn, with the coefficients held fixed.

    Returns:
        The ratio of the new squared error to the old one: 1 if the layer reads no other pair.
    """
    import numpy as np
    import torch

    from tasks.data.splits import sample_split
    from zoo.loading.saved import load
    from zoo.theory.operator import replayed

    task: Any = build_task(run.config)
    arrays = sample_split(task, "test", HELD, run.seed)
    inputs, labels = arrays["inputs"], arrays["labels"][:, -1]
    keys = inputs[:, :, task.d_value : task.d_value + task.n_keys]
    others = (keys * keys[:, -1:]).sum(2) != 1
    others &= keys.any(2)
    drawn = np.random.default_rng(run.seed).standard_normal(inputs.shape, dtype=np.float32)
    redrawn = np.where(others[:, :, None] & (np.arange(inputs.shape[2]) < task.d_value), drawn, inputs)
    with replayed(load(run.folder), torch.from_numpy(inputs)) as held:
        again = held.matvec(torch.from_numpy(redrawn)[None])[0] + held.offset
    before, after = (float(np.square(y[:, -1].numpy() - labels).sum()) for y in (held.output, again))
    return (after / before,)


def distilled(run: Run) -> Sequence[float]:
    """Measure the error of the last layer distilled into heads; see `lab.experiments.distilled`."""
    from lab.experiments.distilled import distilled

    return distilled(run)


def sink(run: Run) -> Sequence[float]:
    """Measure the effect of the learned first token of each layer; see `lab.experiments.bos`."""
    from lab.experiments.bos import sink

    return sink(run)


PROBES = {
    "distilled": Probe(
        1,
        tuple(f"{column}, H={n}" for n in DISTILLED_TO for column in _DISTILLED),
        distilled,
        by_seed=True,
    ),
    "sink": Probe(1, ("weight on BOS", "loss added, BOS held", "loss added, BOS left out"), sink, by_seed=True),
    "held_weights": Probe(1, ("error ratio with other values",), held_weights, by_seed=True),
    "head_count_bound": Probe(1, ("bound",), head_count_bound),
    "gradient": Probe(1, ("gradient",), gradient),
    "layer_gradient": Probe(1, ("gradient",), layer_gradient),
    "heads": Probe(1, ("heads needed", "heads that copy to 10 %", "accuracy without operators"), heads, by_seed=True),
}


def measure(names: Sequence[str], runs: Sequence[Run]) -> list[dict[str, float]]:
    """Return the columns of the probes for each run; a configuration is measured once unless seeds differ."""
    columns: list[dict[str, float]] = [{} for _ in runs]
    with progress(len(names) * len(runs)) as advance:
        for name in names:
            probe = PROBES[name]
            measured: dict[str, dict[str, float]] = {}
            for run, found in zip(runs, columns, strict=True):
                advance(f"{name} of {run.mixer} on {run.task}, seed {run.seed}")
                key = str(run.folder) if probe.by_seed else repr(sorted(run.options.items(), key=str))
                if key not in measured:
                    measured[key] = dict(zip(probe.columns, probe.measure(run), strict=True))
                found |= measured[key]
    return columns
