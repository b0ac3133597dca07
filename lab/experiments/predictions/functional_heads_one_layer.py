"""How many operators a layer needs that does all the work, in every mixer that carries a state."""

from __future__ import annotations

from statistics import median
from typing import Any

from lab.experiments.predictions.functional_heads import FEW, SHOWN, needed
from lab.experiments.predictions.functional_heads_trained import layers_of
from lab.experiments.vocabulary import ACCURACY, GUESSED, LEARNED, Prediction, Runs, curve, panel
from zoo.evidence import Check, Evidence, Samples, at_least, at_most, controlled, paired
from zoo.report.terminal import progress

MIXING = {"rnn", "gru", "lstm", "slstm"}
"""Mixers whose recurrence mixes the channels of their state."""
SHARE = 1 / 3
"""Of the operators that copy a layer to 10 %, what the median mixer needs at most."""
ANSWERS = {"mqar": "task.n_pairs", "needle": "task.n_classes"}
"""The option that says among how many answers one guesses who has read the sequence, or knows the task only."""


def judge(runs: Runs) -> Evidence:
    """Expect few operators where no recurrence mixes channels, and more where one does."""
    checks: list[Check] = []
    shares: list[Samples] = []
    panels = []
    with progress(len(runs)) as advance:
        for task, of_task in runs.by("task.name"):
            kept, sizes = [], []
            for kind, of_kind in of_task.kinds().items():
                layers: dict[int, dict[str, Any]] = {}
                for run in of_kind.runs:
                    advance(f"heads of {kind} on {task}, seed {run.seed}")
                    (layers[run.seed],) = layers_of(run)
                first = of_kind.runs[0].options
                without = {seed: layer["score_by_heads"]["0"] for seed, layer in layers.items()}
                controls = (
                    at_least("accuracy", of_kind.samples(ACCURACY), LEARNED),
                    at_most("accuracy without any operator", without, 1 / first[ANSWERS[task]] + GUESSED),
                )
                counts = {seed: needed(layer) for seed, layer in layers.items()}
                copies = {seed: layer["heads"]["0.1"] for seed, layer in layers.items()}
                quantity = f"{task}, {first['mixer.name']}: operators that keep 99 % of the accuracy"
                if first["mixer.name"] in MIXING:
                    check = at_least(quantity, counts, FEW + 1)
                else:
                    check = at_most(quantity, counts, FEW)
                    if of_kind.median(ACCURACY) >= LEARNED:
                        shares.append(paired(lambda count, copy: count / copy, counts, copies))
                checks.append(controlled(check, *controls))
                scores = [layer["score_by_heads"] for layer in layers.values()]
                tested = sorted(map(int, set.intersection(*map(set, scores))))
                cut = {n: median(each[str(n)] for each in scores) for n in tested if n <= SHOWN}
                kept.append(curve(first["mixer.name"], cut))
                ranks = [layer["rank"] for layer in layers.values()]
                medians = map(median, (ranks, copies.values(), counts.values()))
                sizes.append(curve(first["mixer.name"], dict(enumerate(medians))))
            needs = ("all", "copy to 10 %", "keep 99 % of accuracy")
            unit = "operators that are left"
            panels += [
                panel(f"{task}: the only layer, cut", unit, "test accuracy", kept, log_y=False),
                panel(f"{task}: operators of that layer", "", "operators", sizes, x_names=needs, lowest=0.5),
            ]
    share = paired(lambda *of_mixers: median(of_mixers), *shares) if shares else {}
    quantity = (
        "operators that keep 99 % of the accuracy / those that copy the layer to 10 %, median over those that learn"
    )
    checks.append(at_most(quantity, share, SHARE))
    return Evidence(tuple(checks), tuple(panels))


PREDICTION = Prediction(
    "Ours: zoo.theory.truncation; the span is that of Ghodsi, arXiv 2512.15115",
    "a layer without mixing of channels that needs more than four operators, one with it that does not, or more than a "
    "third of those that copy a layer to 10 %",
    judge,
)
