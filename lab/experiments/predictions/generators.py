"""Words of a few generators, each of them one reflection or two, beyond the length of training."""

from __future__ import annotations

from lab.experiments.predictions.state_tracking import LOST, REACH
from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, at_length, curve, not_learned, panel
from zoo.evidence import Check, Curve, Evidence, at_least

REFLECTIONS = {"A5": 2, "S5": 1}
"""Reflections by which each generator acts: a turn is two, a swap one."""


def judge(runs: Runs) -> Evidence:
    """Expect a product far beyond the length of training where a token may act as its generator does, else not."""
    checks: list[Check] = []
    lines: dict[str, list[Curve]] = {}
    trained = max(runs.values("task.seq_len"))
    far = at_length(REACH * trained)
    for label, kind in runs.kinds().items():
        cells = dict(kind.where({"task.seq_len": trained}).by("task.group"))
        easy = kind.where({"task.seq_len": min(runs.values("task.seq_len"))})
        for group, cell in cells.items():
            usual, options = cell.usual, cell.runs[0].options
            quantity = f"{group}, {label}: accuracy at length {REACH * trained}"
            score = usual.samples(far)
            if options["mixer.name"] == "slstm" or options.get("mixer.n_householder", 0) >= REFLECTIONS[group]:
                checks.append(at_least(quantity, score, LEARNED))
            else:
                what = "that on words of four" if easy.runs else "that on swaps"
                control = at_least(what, (easy if easy.runs else cells["S5"]).samples(ACCURACY), LEARNED)
                checks.append(not_learned(quantity, score, LOST, control, cell.longer.samples(far)))
            lengths = {trained: ACCURACY} | {n: at_length(n) for n in options["task.test_lengths"]}
            points = {n: usual.median(metric) for n, metric in lengths.items()}
            lines.setdefault(group, []).append(curve(label, points))
    panels = (
        panel(f"{group}, trained at length {trained}", "length", "test accuracy", each, log_x=True, log_y=False)
        for group, each in lines.items()
    )
    return Evidence(tuple(checks), tuple(panels))


PREDICTION = Prediction(
    "Grazzi et al., arXiv 2411.12537; Siems et al., arXiv 2502.10297 (reflections per token); a turn is two "
    "reflections (Cartan, Dieudonné), and the swaps of five things are reflections of four dimensions",
    "products of turns that are kept by one reflection per token or by attention, or lost by two or by a nonlinear "
    "recurrence, or swaps that one reflection per token loses",
    judge,
)
