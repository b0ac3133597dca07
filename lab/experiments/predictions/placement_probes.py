"""What tells where the only attention layer of a stack should stand: three probes, each asked for a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from lab.build import build, build_task
from lab.experiments.predictions.functional_heads import READ_AT
from lab.experiments.predictions.placement_of_two import gradient_at_initialisation
from lab.experiments.vocabulary import ACCURACY, LEARNED, SPREAD, Prediction, Runs, curve, panel
from lab.run.record import Run
from zoo.evidence import Check, Evidence, Samples, at_least, at_most, paired
from zoo.report.terminal import progress

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.backbone import Backbone

DISTILLED, RESTORED = 300, 75
"""Steps in which a stack learns a teacher's answers, and once more where one of its layers has been restored."""
BATCH, JUDGED_ON, RATE = 64, 512, 3e-3
"""Sequences in a step, those on which the loss is measured, and the learning rate (AdamW)."""


def heads_by_place(run: Run) -> dict[int, int]:
    """Measure, layer by layer, the heads that copy a run's layers to 10 %."""
    import numpy as np
    import torch

    from zoo.loading.saved import load
    from zoo.theory.model_heads import measure_heads

    inputs = build_task(run.config).sample(np.random.default_rng(run.seed), READ_AT)["inputs"]
    rows = measure_heads(load(run.folder), torch.from_numpy(inputs))
    return {place: row.read.heads[0.1] for place, row in enumerate(rows, 1)}


def restored_losses(run: Run, mixed: Mapping[str, Any]) -> dict[int, float]:
    """Measure, place by place, how far a stack with one attention layer of a run's stack is from that stack's answers.

    A copy of the trained stack has its mixers replaced by untrained ones without attention, and is distilled to its
    answers, in Kullback-Leibler divergence where answers are asked for. Then each layer of attention is restored alone,
    and what results is distilled a little longer (arXiv 2512.20569).

    Args:
        run: of the stack of attention.
        mixed: the configuration of a stack with other layers, of which the replaced ones are made.

    Returns:
        {place, from 1: divergence in nats on other sequences}.
    """
    import numpy as np
    import torch

    from tasks.spec import IGNORED
    from zoo.loading.saved import load

    n_layers: int = run.config["n_layers"]
    rng = np.random.default_rng([run.seed, n_layers])
    teacher = load(run.folder)
    trained = teacher.state_dict()
    task = build_task(run.config)

    def stack(place: int | None, weights: Mapping[str, Tensor]) -> Backbone:
        """Return a stack with attention in one place or none, of these weights as far as they go."""
        mixer = {name: value for name, value in mixed["mixer"].items() if place is not None or name != "attention"}
        pattern = ["attention" if at == place else "diagonal_ssm" for at in range(n_layers)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            _, model = build({**mixed, "mixer": mixer | {"pattern": pattern}})
        model.load_state_dict(model.state_dict() | dict(weights))
        return model

    def divergence(model: Backbone, n: int) -> Tensor:
        drawn = {name: torch.from_numpy(values) for name, values in task.sample(rng, n).items()}
        asked = drawn["labels"] != IGNORED
        with torch.no_grad():
            wanted = teacher(drawn["inputs"])[asked].log_softmax(-1)
        found = model(drawn["inputs"])[asked].log_softmax(-1)
        return torch.nn.functional.kl_div(found, wanted, reduction="batchmean", log_target=True)

    def distil(model: Backbone, n_steps: int) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        model.train()
        for _ in range(n_steps):
            optimizer.zero_grad()
            divergence(model, BATCH).backward()
            optimizer.step()
        model.eval()

    student = stack(None, {name: values for name, values in trained.items() if ".mixer." not in name})
    distil(student, DISTILLED)
    learned, losses = student.state_dict(), dict[int, float]()
    for place in range(n_layers):
        here = f"layers.layers.{place}.mixer."
        weights = {name: values for name, values in learned.items() if not name.startswith(here)}
        restored = stack(place, weights | {name: trained[name] for name in trained if name.startswith(here)})
        distil(restored, RESTORED)
        with torch.no_grad():
            losses[place + 1] = float(divergence(restored, JUDGED_ON))
    return losses


def judge(runs: Runs) -> Evidence:
    """Compare the place that each probe picks with the best of its seed."""
    stacks = {tuple(pattern): cell for pattern, cell in runs.by("mixer.pattern")}
    places = {
        pattern.index("attention") + 1: cell for pattern, cell in stacks.items() if pattern.count("attention") == 1
    }
    (teachers,) = (cell for pattern, cell in stacks.items() if set(pattern) == {"attention"})
    gradients = {place: gradient_at_initialisation(cell.runs[0].config) for place, cell in places.items()}
    mixed = places[1].runs[0].config
    heads: dict[int, dict[int, int]] = {}
    losses: dict[int, dict[int, float]] = {}
    with progress(len(teachers)) as advance:
        for run in teachers.runs:
            advance(f"probes of seed {run.seed}")
            heads[run.seed] = heads_by_place(run)
            losses[run.seed] = restored_losses(run, mixed)
    scores = {place: cell.samples(ACCURACY) for place, cell in places.items()}
    best = paired(lambda *each: max(each), *scores.values())

    def lost(pick: Callable[[int], int]) -> Samples:
        return {seed: best[seed] - scores[pick(seed)][seed] for seed in best}

    what = "accuracy lost against the seed's best place by the one with"
    checks: list[Check] = [
        at_least("mqar: accuracy of the best place", best, LEARNED),
        at_most(f"{what} the largest gradient before training", lost(lambda _: _most(gradients)), SPREAD),
        at_most(
            f"{what} the least loss when its layer is restored",
            lost(lambda seed: _most({place: -loss for place, loss in losses[seed].items()})),
            SPREAD,
        ),
        at_least(f"{what} most heads in a stack of attention", lost(lambda seed: _most(heads[seed])), SPREAD),
    ]
    drawn: dict[str, Mapping[int, float]] = {
        "test accuracy": {place: cell.median(ACCURACY) for place, cell in places.items()},
        "gradient before training": gradients,
        "loss when the layer is restored": _medians(losses),
        "heads for 10 % in a stack of attention": _medians(heads),
    }
    x = "place of the attention layer"
    panels = (
        panel(name, x, name, [curve("median of seeds", points)], whole_x=True, log_y=False)
        for name, points in drawn.items()
    )
    return Evidence(tuple(checks), tuple(panels))


def _most(probe: Mapping[int, float]) -> int:
    """Return the place with the largest value; of several, the first."""
    return max(sorted(probe), key=lambda place: probe[place])


def _medians(by_seed: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    found = list(by_seed.values())
    return {place: median(each[place] for each in found) for place in found[0]}


PREDICTION = Prediction(
    "Ours; a layer restored to a distilled stack: arXiv 2512.20569",
    "a place picked by the gradient or by a restored layer that loses more than 0.05, or one picked by heads that does "
    "not",
    judge,
)
