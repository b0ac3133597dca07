"""What a gate per channel gains over one per head on recall and on text."""

from __future__ import annotations

from lab.experiments.predictions.gates import PAIRS
from lab.experiments.vocabulary import ACCURACY, BITS, LEARNED, SPREAD, Prediction, Runs, curve, panel
from zoo.evidence import Check, Evidence, at_least, controlled, paired, within

GATES = ("per head", "per channel")


def judge(runs: Runs) -> Evidence:
    """Expect no difference where one operator is enough, and fewer bits on text."""
    checks: list[Check] = []
    found = {}
    for task, metric in (("mqar", ACCURACY), ("text", BITS)):
        of_task = runs.where({"task.name": task})
        curves = []
        for label, pair in PAIRS.items():
            cells = [of_task.where(each) for each in pair]
            by_head, by_channel = (cell.samples(metric) for cell in cells)
            if task == "mqar":
                gain = paired(lambda channel, head: channel - head, by_channel, by_head)
                check = within(f"{label}: accuracy of recall gained by gates per channel", gain, -SPREAD, SPREAD)
                learned = (
                    at_least(f"accuracy with gates {gate}", scores, LEARNED)
                    for gate, scores in zip(GATES, (by_head, by_channel), strict=True)
                )
                checks.append(controlled(check, *learned))
            else:
                saved = paired(lambda channel, head: head - channel, by_channel, by_head)
                checks.append(at_least(f"{label}: bits per byte of text saved by gates per channel", saved, 0))
            curves.append(curve(label, dict(enumerate(cell.median(metric) for cell in cells))))
        found[task] = curves
    panels = (
        panel("Recall", "", "test accuracy", found["mqar"], x_names=GATES, log_y=False),
        panel("Text", "", "bits per byte", found["text"], x_names=GATES, log_y=False),
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Qiu et al., arXiv 2505.06708 (gates of attention); Gated DeltaNet 2, arXiv 2605.22791; ours: functional heads of "
    "recall",
    "gates per channel that change what is recalled, or that save nothing on text",
    judge,
)
