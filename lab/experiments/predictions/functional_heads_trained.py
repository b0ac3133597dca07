"""How many operators the layer that does the work needs, in models trained until they recall."""

from __future__ import annotations

from statistics import median
from typing import Any

from lab.experiments.predictions.functional_heads import FEW, READ_AT, SHARE, SHOWN, needed
from lab.experiments.vocabulary import ACCURACY, GUESSED, LEARNED, Prediction, Runs, curve, panel
from lab.run.files import HEADS
from lab.run.record import Run
from zoo.evidence import Check, Evidence, at_least, at_most, controlled
from zoo.report.files import read_json, write_atomically
from zoo.report.terminal import progress

SCORED_ON = 256
"""Other sequences on which a cut model is scored: an accuracy of 1 is known to 0.015 then."""


def layers_of(run: Run) -> list[dict[str, Any]]:
    """Return what `zoo heads` says of each layer of a run's model; measured once and kept in the run's folder."""
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
    return read_json(file)["layers"]


def working(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the layer without whose operators the model scores least: the one that does the work."""
    return min(layers, key=lambda layer: layer["score_by_heads"]["0"])


def judge(runs: Runs) -> Evidence:
    """Expect that the layer that does the work needs few of the operators that it spans."""
    checks: list[Check] = []
    kept, sizes = [], []
    with progress(len(runs)) as advance:
        for kind, of_kind in runs.kinds().items():
            layers: dict[int, dict[str, Any]] = {}
            for run in of_kind.runs:
                advance(f"heads of {kind}, seed {run.seed}")
                layers[run.seed] = working(layers_of(run))
            counts = {seed: needed(layer) for seed, layer in layers.items()}
            spanned = {seed: layer["heads"]["0.1"] for seed, layer in layers.items()}
            without = {seed: layer["score_by_heads"]["0"] for seed, layer in layers.items()}
            guess = 1 / of_kind.runs[0].options["task.n_pairs"] + GUESSED
            controls = (
                at_least(f"{kind}: accuracy", of_kind.samples(ACCURACY), LEARNED),
                at_most(f"{kind}: accuracy without any operator of that layer", without, guess),
            )
            used = {seed: count / spanned[seed] for seed, count in counts.items()}
            enough = f"{kind}: operators that keep 99 % of the accuracy"
            checks += [
                controlled(at_most(enough, counts, FEW), *controls),
                controlled(at_most(f"{enough} / those that copy the layer to 10 %", used, SHARE), *controls),
            ]
            scores = [layer["score_by_heads"] for layer in layers.values()]
            tested = sorted(set.intersection(*map(set, scores)), key=int)
            kept.append(curve(kind, {int(n): median(each[n] for each in scores) for n in tested if int(n) <= SHOWN}))
            ranks = [layer["rank"] for layer in layers.values()]
            sizes.append(curve(kind, dict(enumerate(map(median, (ranks, spanned.values(), counts.values()))))))
    needs = ("all", "copy to 10 %", "keep 99 % of accuracy")
    panels = (
        panel("The layer that does the work, cut", "operators that are left", "test accuracy", kept, log_y=False),
        panel("Operators of that layer", "", "operators", sizes, x_names=needs, lowest=0.5),
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Ours: zoo.theory.truncation; the span is that of Ghodsi, arXiv 2512.15115",
    "a layer that needs more than four operators, or more than a quarter of those that copy it to 10 %",
    judge,
)
