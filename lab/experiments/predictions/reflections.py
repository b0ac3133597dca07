"""What a second reflection per token gains on words longer than those of training, seed by seed."""

from __future__ import annotations

from lab.experiments.vocabulary import ACCURACY, LEARNED, Prediction, Runs, at_length, curve, panel
from zoo.evidence import Check, Curve, Evidence, at_least, controlled, paired

LEADS = {2: 0.0, 4: 0.2}
"""The least lead in accuracy at so many times the length of training."""


def judge(runs: Runs) -> Evidence:
    """Expect two reflections ahead of one on S3, where one is enough for Z2."""
    checks: list[Check] = []
    curves: list[Curve] = []
    (trained,) = runs.values("task.seq_len")
    far = max(LEADS) * trained
    single, double = (runs.where({"task.group": "S3", "mixer.n_householder": n}) for n in (1, 2))
    enough = runs.where({"task.group": "Z2"}).samples(at_length(far))
    control = at_least(f"Z2, one reflection: accuracy at length {far}", enough, LEARNED)
    for times, least in LEADS.items():
        length = times * trained
        lead = paired(lambda two, one: two - one, *(each.samples(at_length(length)) for each in (double, single)))
        quantity = f"S3: accuracy that a second reflection gains at length {length}"
        checks.append(controlled(at_least(quantity, lead, least), control))
    for group, of_group in runs.by("task.group"):
        for n, of_n in of_group.by("mixer.n_householder"):
            lengths = {trained: ACCURACY} | {m: at_length(m) for m in of_n.runs[0].options["task.test_lengths"]}
            points = {length: of_n.median(metric) for length, metric in lengths.items()}
            curves.append(curve(f"{group}, {n} per token", points))
    title = f"Reflections, trained at length {trained}"
    drawn = panel(title, "length", "test accuracy", curves, log_x=True, log_y=False)
    return Evidence((*checks, control), (drawn,))


PREDICTION = Prediction(
    "Grazzi et al., arXiv 2411.12537 (negative eigenvalues); Siems et al., arXiv 2502.10297 (reflections per token)",
    "one reflection that is ahead at twice the length, or less than 0.2 below two at four times it",
    judge,
)
