"""How many operators the layers of a trained model need, next to those that copy them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from lab.experiments.vocabulary import ACCURACY, GUESSED, LEARNED, Prediction, Runs, curve, panel
from lab.run.files import HEADS
from lab.run.record import Run
from zoo.evidence import Check, Evidence, at_least, at_most, controlled, given
from zoo.report.files import read_json, write_atomically
from zoo.report.terminal import progress

FEW, SHARE = 4, 1 / 4
"""Operators of a layer that are enough: a number, and a share of those that copy it to 10 %."""
SHOWN = 16
"""Operators up to which the plot reaches."""
READ_AT, SCORED_ON = 16, 64
"""Sequences at which operators are read, and others on which the cut model is scored."""


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


def needed(layer: Mapping[str, Any]) -> int:
    """Return the operators that a layer needs: its rank, which copies it, if none of the smaller numbers is enough."""
    least = layer["functional_heads"]
    return layer["rank"] if least is None else least


def judge(runs: Runs) -> Evidence:
    """Expect that the layer which needs most operators needs few, and that it needs any."""
    checks: list[Check] = []
    kept, sizes = [], []
    with progress(len(runs)) as advance:
        for kind, of_kind in runs.kinds().items():
            layers: dict[int, dict[str, Any]] = {}
            for run in of_kind.runs:
                advance(f"heads of {kind}, seed {run.seed}")
                layers[run.seed] = max(layers_of(run), key=needed)
            counts = {seed: needed(layer) for seed, layer in layers.items()}
            shares = {seed: count / layers[seed]["heads"]["0.1"] for seed, count in counts.items()}
            without = {seed: layer["score_by_heads"]["0"] for seed, layer in layers.items()}
            guess = 1 / of_kind.runs[0].options["task.n_pairs"] + GUESSED
            learned = at_least(f"{kind}: accuracy", of_kind.samples(ACCURACY), LEARNED)
            needs_it = at_most(f"{kind}: accuracy without any operator of that layer", without, guess)
            enough = f"{kind}: operators that keep 99 % of the accuracy"
            checks += [
                given(controlled(few, needs_it), learned)
                for few in (
                    at_most(enough, counts, FEW),
                    at_most(f"{enough} / those that copy the layer to 10 %", shares, SHARE),
                )
            ]
            scores = [layer["score_by_heads"] for layer in layers.values()]
            tested = sorted(set.intersection(*map(set, scores)), key=int)
            kept.append(curve(kind, {int(n): median(each[n] for each in scores) for n in tested if int(n) <= SHOWN}))
            copied = [(layer["rank"], layer["heads"]["0.01"], layer["heads"]["0.1"]) for layer in layers.values()]
            medians = [*map(median, zip(*copied, strict=True)), median(counts.values())]
            sizes.append(curve(kind, dict(enumerate(medians))))
    needs = ("all", "copy to 1 %", "copy to 10 %", "keep 99 % of accuracy")
    panels = (
        panel("One layer cut: accuracy", "operators that are left", "test accuracy", kept, log_y=False),
        panel("Operators of that layer", "", "operators", sizes, x_names=needs, lowest=0.5),
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Ours: zoo.theory.truncation; the span is that of Ghodsi, arXiv 2512.15115",
    "a layer that needs more than four operators, or more than a quarter of those that copy it to 10 %",
    judge,
)
