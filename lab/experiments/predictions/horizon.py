"""The length at which a trained model loses its state, told by the states that it has at the length of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist, linear_regression, median
from typing import TYPE_CHECKING, Any

from lab.experiments.vocabulary import LEARNED, Prediction, Runs, correlated
from lab.run.record import Run
from zoo.evidence import Check, Curve, Evidence, Panel
from zoo.report.numbers import count
from zoo.report.terminal import progress

if TYPE_CHECKING:
    from torch import Tensor

REACH = 16
"""At how many times the length of training words end; a horizon beyond counts as that."""
WORDS, SEED = 512, 0
"""Words on which states are read, and the seed that draws them."""
READABLE = NormalDist().inv_cdf(LEARNED)
"""Half a distance between two elements, in standard deviations, from which a decoder tells them apart in 90 %."""
RIDGE = 1e-3
"""Of the mean variance of a state's numbers, added to the variance in every direction."""
FEWEST_KEPT = 10
"""Cells that must hold the state at the length of training: of fewer a correlation says little."""


def separations(states: Tensor, labels: Tensor) -> list[float]:
    """Return half the least distance between two elements' mean states, at each position.

    In standard deviations of the states of one element, along the line between the two means (Mahalanobis' distance).

    Args:
        states: (words, positions, numbers).
        labels: the elements (words, positions).
    """
    import torch

    found = []
    for now, elements in zip(states.double().unbind(1), labels.unbind(1), strict=True):
        present, place = elements.unique(return_inverse=True)
        means = torch.stack([now[elements == element].mean(0) for element in present])
        off = now - means[place]
        spread = off.T @ off / len(off)
        room = RIDGE * spread.diagonal().mean().clamp(min=torch.finfo(spread.dtype).tiny)
        root = torch.linalg.cholesky(spread + room * torch.eye(len(spread), dtype=spread.dtype))
        apart = torch.pdist(torch.linalg.solve_triangular(root, means.T, upper=False).T)
        found.append(float(apart.min()) / 2 if len(apart) else 0.0)
    return found


def extrapolated(values: Sequence[float], trained: int) -> float:
    """Return where a power law through the separations of positions 2 to `trained` falls to `READABLE`."""
    points = [(at, value) for at, value in enumerate(values[:trained], 1) if at > 1 and 0 < value < math.inf]
    if len(points) < 2:
        return math.inf
    slope, start = linear_regression(*([math.log(number) for number in side] for side in zip(*points, strict=True)))
    return math.exp((math.log(READABLE) - start) / slope) if slope < 0 else math.inf


def horizons(run: Run) -> tuple[float, float]:
    """Return the predicted and the measured horizon of a run's model, in positions; at most `REACH` times training.

    The first looks at positions up to the length of training only; the second is where fewer than 90 % are right.
    """
    import numpy as np
    import torch

    from lab.build import build_task
    from zoo.loading.saved import load

    task, model = build_task(run.config), load(run.folder).eval()
    trained = task.spec.seq_len
    arrays = task.at_length(REACH * trained).sample(np.random.default_rng(SEED), WORDS)
    words, labels = (torch.from_numpy(arrays[name]) for name in ("inputs", "labels"))
    state, states, right = None, [], []
    with torch.no_grad():
        for at in range(words.shape[1]):
            logits, state = model.stream(words[:, at : at + 1], state)
            right.append(float((logits[:, 0].argmax(-1) == labels[:, at]).double().mean()))
            if at < trained:
                states.append(torch.cat([each.flatten(1).double() for each in tensors(state)], dim=1))
    predicted = extrapolated(separations(torch.stack(states, 1), labels[:, :trained]), trained)
    most = REACH * trained
    return min(predicted, most), next((at for at, share in enumerate(right) if share < LEARNED), most)


def tensors(state: Any) -> Iterator[Tensor]:
    """Return the tensors of numbers in a state, which may be nested."""
    if isinstance(state, list | tuple):
        for part in state:
            yield from tensors(part)
    elif state is not None and state.is_floating_point():
        yield state


def judge(runs: Runs) -> Evidence:
    """Expect that models with the longer predicted horizon keep the state for longer."""
    (trained,) = runs.values("task.seq_len")
    found: dict[str, list[tuple[float, float]]] = {}
    with progress(len(runs)) as advance:
        for group, of_group in runs.by("task.group"):
            for width, of_width in of_group.by("d_model"):
                for kind, of_kind in of_width.kinds().items():
                    for run in of_kind.runs:
                        advance(f"states of {kind} on {group}, seed {run.seed}")
                        found.setdefault(f"{group}, {kind}, width {width}", []).append(horizons(run))
    cells = {name: tuple(map(median, zip(*pairs, strict=True))) for name, pairs in found.items()}
    kept = {name: (predicted, measured) for name, (predicted, measured) in cells.items() if measured >= trained}
    quantity = f"rank correlation of predicted and measured horizon, over {count(len(kept), 'cell')}"
    check = correlated(quantity, list(kept.values()), 0.5)
    if len(kept) < FEWEST_KEPT:
        reason = f"{count(len(kept), 'cell')} of the {FEWEST_KEPT} that must hold the state up to length {trained}"
        check = Check(quantity, math.nan, 0.5, reason=reason)
    curves = tuple(Curve(name, (x,), (y,), "points") for name, (x, y) in kept.items())
    title = f"Horizons of models trained at length {trained}"
    drawn = Panel(title, "predicted from the states of training", "measured", curves, log_x=True)
    return Evidence((check,), (drawn,))


PREDICTION = Prediction(
    "Error control in state tracking, arXiv 2605.07755 (spread within an element against distance between elements)",
    "a rank correlation below 0.5",
    judge,
)
