"""What the share of attention layers in a stack buys and costs."""

from __future__ import annotations

from lab.experiments.vocabulary import (
    ACCURACY,
    GUESSED,
    LEARNED,
    SPREAD,
    STATE,
    Prediction,
    Runs,
    curve,
    not_learned,
    panel,
)
from zoo.evidence import Check, Evidence, at_least, paired

HARDNESS = {"mqar": "task.n_pairs", "needle": "task.distance"}
"""The option that makes a task harder: the control has its least value among the runs."""


def judge(runs: Runs) -> Evidence:
    """Compare what the share of attention layers gains and costs."""
    checks: list[Check] = []
    medians: dict[str, dict[tuple[str, ...], dict[float, float]]] = {}
    for task, of_task in runs.by("task.name"):
        usual, longer = of_task.usual, of_task.longer
        hard, easy = usual.hardest(HARDNESS[task]), usual.easiest(HARDNESS[task])
        cells = {pattern.count("attention") / len(pattern): cell for pattern, cell in hard.by("mixer.pattern")}
        medians[task] = {
            metric: {share: cell.median(metric) for share, cell in cells.items()} for metric in (ACCURACY, STATE)
        }
        guess = 1 / hard.runs[0].options["task.n_pairs" if task == "mqar" else "task.n_classes"]
        few = min(share for share in cells if share > 0)
        none, some, all_of_it = (cells.get(share, Runs(())) for share in (0.0, few, 1.0))
        easy = easy.where({"mixer.pattern": none.runs[0].options["mixer.pattern"]}) if len(none) else none
        control = at_least("that of the easier task", easy.samples(ACCURACY), LEARNED)
        loss = paired(lambda a, b: a - b, some.samples(ACCURACY), all_of_it.samples(ACCURACY))
        alone = f"{task}: accuracy with {few:.0%} attention less that of attention only"
        checks += [
            not_learned(
                f"{task}: accuracy without attention",
                none.samples(ACCURACY),
                guess + GUESSED,
                control,
                longer.samples(ACCURACY),
            ),
            at_least(alone, loss, -SPREAD),
            at_least(f"{task}: accuracy of attention only", all_of_it.samples(ACCURACY), LEARNED),
        ]
    titles = {
        ACCURACY: ("Recall and long memory", "test accuracy"),
        STATE: ("State", "bytes after the sequence"),
    }
    panels = tuple(
        panel(title, "share of attention layers", unit, [curve(t, m[metric]) for t, m in medians.items()], log_y=False)
        for metric, (title, unit) in titles.items()
    )
    return Evidence(tuple(checks), panels)


PREDICTION = Prediction(
    "Lieber et al., arXiv 2403.19887 (Jamba); Ghodsi, arXiv 2512.15115",
    "a stack that recalls or remembers without attention, or one attention layer in four that does not",
    judge,
)
