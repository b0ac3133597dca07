"""What the experiments of configs/experiment/ predict: for each, when it holds, as checks on what its runs measured.

An experiment's file says in words what is expected and which runs decide; here stands the same in numbers, written
before the runs were made. A judge takes the runs as they are, whatever the setting: values that the grid varies are
read off the runs, never repeated here. Where runs are missing, a median is NaN, which no check accepts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.build import build
from lab.compare.runs import Run
from lab.run import number_at
from zoo.registry import MIXERS
from zoo.theory.claims.claim import Check, Curve, Evidence, Panel, at_least, at_most, near

ACCURACY, ERROR, BITS = ("test", "accuracy"), ("test", "relative_squared_error"), ("test", "bits_per_token")
STATE, SPEED = ("state_bytes",), ("tokens_per_second",)
"""Where the metrics have these numbers."""
ZERO = 1e-6
"""A relative squared error that is nothing: an optimiser in float32 stops near 1e-11."""
NOISE = 0.03
"""Relative, of a trained error: 2 % of Adam's noise (the median of seeds), 1 % of the sample that it is tested on."""
LEARNED, GUESSED = 0.9, 0.1
"""An accuracy from which a task of one answer counts as learned; above chance, one up to which it does not."""
SPREAD = 0.05
"""Accuracies that differ by less are alike."""
REACH = 4
"""At how many times the length of training a state must have been kept."""
TRACKED, LOST = 0.8, 1 / REACH + 0.2
"""Shares of the way from chance to 1 from which, and up to which, a state counts as tracked, and as lost: being right
up to the length of training and guessing from there on is worth 1 / REACH."""
VANISHED = 1e-4
"""A gradient, relative to that of the last position, which is no signal any more."""
LTI = "time-invariant"
"""The family of mixers that mix positions in one way whatever the input."""
RECALLING = {"softmax", "delta rule", "hybrid"}
"""Families of mixers that can look up what followed a symbol before."""


@dataclass(frozen=True)
class Runs:
    """Some runs of one experiment, and what is asked of them together."""

    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.runs)

    def where(self, options: Mapping[str, Any]) -> Runs:
        """Return the runs with these values."""
        return Runs(tuple(r for r in self.runs if all(r.options.get(key) == value for key, value in options.items())))

    def values(self, option: str) -> list[Any]:
        """Return the values of an option, each once: numbers ascending, others in the order of the runs."""
        found = {json.dumps(run.options.get(option)): run.options.get(option) for run in self.runs}
        values = [value for value in found.values() if value is not None]
        return sorted(values) if all(isinstance(value, int | float) for value in values) else values

    def by(self, option: str) -> Iterator[tuple[Any, Runs]]:
        """Return each value of an option with its runs."""
        return ((value, self.where({option: value})) for value in self.values(option))

    def scores(self, metric: Sequence[str]) -> list[float]:
        """Return a metric of each run that has it; see `lab.run.number_at`."""
        return [value for run in self.runs if (value := number_at(run.metrics, *metric)) is not None]

    def median(self, metric: Sequence[str]) -> float:
        """Return the median over the runs; NaN where none has the metric."""
        return statistics.median(self.scores(metric) or [math.nan])

    def kinds(self) -> dict[str, Runs]:
        """Return the runs by mixer, and where runs of a mixer differ in its options, by these too."""
        found: dict[str, Runs] = {}
        for name, of_mixer in self.by("mixer.name"):
            keys = {key for run in of_mixer.runs for key in run.options if key.startswith("mixer.")}
            varying = sorted(key for key in keys if len(of_mixer.values(key)) > 1)
            for run in of_mixer.runs:
                settings = {key: run.options.get(key) for key in varying}
                words = [f"{key.removeprefix('mixer.')} {value}" for key, value in settings.items()]
                found.setdefault(", ".join([name, *words]), of_mixer.where(settings))
        return found


@dataclass(frozen=True)
class Prediction:
    """How an experiment is judged.

    Attributes:
        source: where the prediction comes from.
        refuted_by: what would refute it, in words.
        judge: the checks and plots that its runs give.
    """

    source: str
    refuted_by: str
    judge: Callable[[Runs], Evidence]


def _curve(label: str, points: Mapping[Any, float], style: Any = "marked") -> Curve:
    """Return a line through points from left to right, those that were not measured left out."""
    shown = {x: points[x] for x in sorted(points) if math.isfinite(points[x])}
    return Curve(label, tuple(shown), tuple(shown.values()), style)


def _panel(title: str, x: str, y: str, curves: Sequence[Curve], **options: Any) -> Panel:
    return Panel(title, x, y, tuple(curve for curve in curves if curve.x), **options)


# Head counts


def _bounds(runs: Runs, heads: Sequence[int]) -> list[float]:
    """Return the least relative squared error of so many factorized heads on these runs' teacher."""
    import torch

    from tasks.ssm_teacher import SSMTeacher
    from zoo.theory import head_count_bound

    if not len(runs):
        return [math.nan] * len(heads)
    options = runs.runs[0].options
    teacher = SSMTeacher(**{name: options[f"task.{name}"] for name in SSMTeacher().options()})
    lags = torch.as_tensor(teacher.lags)
    return [head_count_bound(lags, h) for h in heads]


def judge_head_count(runs: Runs) -> Evidence:
    """Expect the bound below k heads, and no error from k heads on."""
    checks: list[Check] = []
    curves: list[Curve] = []
    for k, of_k in runs.by("task.k"):
        heads = of_k.values("mixer.n_heads")
        bounds = dict(zip(heads, _bounds(of_k, heads), strict=True))
        errors = {h: each.median(ERROR) for h, each in of_k.by("mixer.n_heads")}
        checks += [
            near(f"k={k}, H={h}: error / bound", errors[h] / bounds[h], 1, NOISE)
            if h < k
            else at_most(f"k={k}, H={h}: error", errors[h], ZERO)
            for h in heads
        ]
        points = [(h, error) for h, each in of_k.by("mixer.n_heads") for error in each.scores(ERROR)]
        curves.append(_curve(f"k = {k}: bound", bounds, "dashed"))
        curves.append(Curve(f"k = {k}: trained", tuple(h for h, _ in points), tuple(y for _, y in points), "points"))
    panel = _panel("Error against heads", "heads H", "relative squared error", curves, whole_x=True, lowest=1e-13)
    return Evidence(tuple(checks), (panel,))


def judge_rank_gap(runs: Runs) -> Evidence:
    """Expect one head at its bound, softmax not below it, and an SSM far below it."""
    checks: list[Check] = []
    errors: dict[str, dict[int, float]] = {"factorized": {}, "attention": {}, "diagonal_ssm": {}}
    bounds: dict[int, float] = {}
    for k, of_k in runs.by("task.k"):
        (bounds[k],) = _bounds(of_k, [1])
        for name, found in errors.items():
            found[k] = of_k.where({"mixer.name": name}).median(ERROR)
        one, softmax, ssm = (found[k] for found in errors.values())
        if k == 1:
            checks.append(at_most("k=1: error of one head", one, ZERO))
            continue
        checks.append(near(f"k={k}: error of one head / bound", one / bounds[k], 1, NOISE))
        checks.append(at_least(f"k={k}: error of one softmax head / bound", softmax / bounds[k], 1 - NOISE))
        checks.append(at_most(f"k={k}: error of the SSM / bound of one head", ssm / bounds[k], 0.1))
    labels = {"factorized": "one head: trained", "attention": "one softmax head", "diagonal_ssm": "SSM"}
    curves = [_curve("one head: bound", {k: b for k, b in bounds.items() if b > ZERO}, "dashed")]
    curves += [_curve(labels[name], found) for name, found in errors.items()]
    panel = _panel(
        "One head against an SSM of rank k", "rank k of the teacher", "relative squared error", curves, lowest=1e-13
    )
    return Evidence(tuple(checks), (panel,))


# Gradients


def gradient_at_initialisation(config: Mapping[str, Any], n_draws: int = 4) -> float:
    """|d y_n / d x_{n - distance}| / |d y_n / d x_n| of a needle run's untrained model, the median over draws.

    In float64: recurrences that accumulate decays in float32 have a false floor near 1e-9.
    """
    import torch

    from zoo.theory import gradient_profile

    distance, d_model = config["task"]["distance"], config["d_model"]

    def make(seed: int) -> torch.nn.Module:
        return build(config)[1].double()

    def embeddings(generator: torch.Generator, _: int) -> torch.Tensor:
        # As the backbone draws its embedding: the scale decides how much a residual stream is made of the input.
        return 0.02 * torch.randn(distance + 1, d_model, generator=generator, dtype=torch.float64)

    profile = gradient_profile(make, embeddings, [0, distance], n_draws, seq_len=distance + 1)
    here, far = profile.values.double().unbind(1)
    return float((far / here).median())


def ranking(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the probability that a number drawn among the true ones exceeds one among the false; ties count half.

    >>> ranking([(3, True), (2, False), (1, True)])
    0.5
    """
    true, false = ([number for number, flag in pairs if flag is wanted] for wanted in (True, False))
    if not true or not false:
        return math.nan
    return sum((t > f) + (t == f) / 2 for t in true for f in false) / (len(true) * len(false))


def judge_gradient_highway(runs: Runs) -> Evidence:
    """Expect no learning where the gradient vanishes, learning on a highway, and the gradients' order in between."""
    checks: list[Check] = []
    accuracies: dict[str, dict[int, float]] = {}
    gradients: dict[str, dict[int, float]] = {}
    outcomes: list[tuple[float, bool]] = []
    for kind, of_kind in runs.kinds().items():
        for distance, cell in of_kind.by("task.distance"):
            accuracy = accuracies.setdefault(kind, {})[distance] = cell.median(ACCURACY)
            gradient = gradients.setdefault(kind, {})[distance] = gradient_at_initialisation(cell.runs[0].config)
            outcomes += [(gradient, score >= LEARNED) for score in cell.scores(ACCURACY)]
            chance = 1 / cell.runs[0].options["task.n_classes"]
            if gradient < VANISHED:
                quantity = f"{kind}, distance {distance} (gradient {gradient:.0e}): accuracy"
                checks.append(at_most(quantity, accuracy, chance + GUESSED))
            elif cell.values("mixer.name") == ["attention"]:
                checks.append(at_least(f"{kind}, distance {distance}: accuracy", accuracy, LEARNED))
    order = "probability that a learned run had the larger gradient before training than one that is not learned"
    checks.append(at_least(order, ranking(outcomes), 0.8))
    reach = dict.fromkeys(runs.values("task.distance"), VANISHED)
    distance = "distance of the needle"
    panels = (
        _panel(
            "Accuracy",
            distance,
            "test accuracy",
            [_curve(*item) for item in accuracies.items()],
            log_x=True,
            log_y=False,
        ),
        _panel(
            "Gradient before training",
            distance,
            "relative to the last position's",
            [*(_curve(k, v) for k, v in gradients.items()), _curve("taken for vanished", reach, "dashed")],
            log_x=True,
        ),
    )
    return Evidence(tuple(checks), panels)


# Recall


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's, of pairs without NaN; NaN where one side is constant or fewer than three are left.

    >>> rank_correlation([(1, 1), (2, 4), (3, 9)])
    1.0
    """
    kept = [pair for pair in pairs if all(math.isfinite(value) for value in pair)]
    if len(kept) < 3:
        return math.nan
    ranks = [[sum((o < v) + (o == v) / 2 for o in side) for v in side] for side in zip(*kept, strict=True)]
    try:
        return statistics.correlation(*ranks)
    except statistics.StatisticsError:
        return math.nan


def judge_recall(runs: Runs) -> Evidence:
    """Expect that attention recalls, that fixed coefficients do not, and that in between more state recalls more."""
    checks: list[Check] = []
    states: list[tuple[float, float]] = []
    curves: list[Curve] = []
    for name, of_mixer in runs.by("mixer.name"):
        found = sorted((kind.median(STATE), kind.median(ACCURACY), label) for label, kind in of_mixer.kinds().items())
        curves.append(_curve(name, {size: accuracy for size, accuracy, _ in found}))
        if name == "attention":
            checks.append(at_least("attention: accuracy", found[-1][1], LEARNED))
        elif MIXERS.entry(name).family == LTI:
            guess = 1 / of_mixer.runs[0].options["task.n_pairs"]
            checks += [at_most(f"{label}: accuracy", accuracy, guess + GUESSED) for _, accuracy, label in found]
        else:
            states += [(size, accuracy) for size, accuracy, _ in found]
            if len(found) > 1:
                (small, low, _), (large, high, _) = found[0], found[-1]
                quantity = f"{name}: accuracy gained from {small:,.0f} to {large:,.0f} bytes of state"
                checks.append(at_least(quantity, high - low, -SPREAD))
    checks.append(at_least("rank correlation of state and accuracy", rank_correlation(states), 0.5))
    for width in runs.where({"mixer.name": "delta_net"}).values("mixer.d_head"):
        same = runs.where({"mixer.d_head": width})
        delta, linear = (same.where({"mixer.name": n}).median(ACCURACY) for n in ("delta_net", "linear_attention"))
        checks.append(at_least(f"heads of {width}: delta rule's accuracy beyond linear attention's", delta - linear, 0))
    panel = _panel(
        "Recall against state", "bytes of state after the sequence", "test accuracy", curves, log_x=True, log_y=False
    )
    return Evidence(tuple(checks), (panel,))


# State tracking


def _at_length(length: int) -> tuple[str, ...]:
    """Return where the metrics have the accuracy at a length."""
    return "test", "at_length", str(length), "accuracy"


def judge_state_tracking(runs: Runs) -> Evidence:
    """Compare who keeps a group's element far beyond the length of training."""
    checks: list[Check] = []
    panels: list[Panel] = []
    titles = {"parity": "parity", "group_words": "permutations"}
    for task, of_task in runs.by("task.name"):
        (trained,) = of_task.values("task.seq_len")
        far = _at_length(REACH * trained)

        def skill(some: Runs, metric: Sequence[str] = far) -> float:
            """Return the share of the way from chance to 1."""
            chance = some.median(["chance"])
            return (some.median(metric) - chance) / (1 - chance)

        curves = []
        for label, kind in of_task.kinds().items():
            (mixer,), steps = kind.values("mixer.name"), kind.values("mixer.beta_max")
            quantity = f"{titles[task]}, {label}: share of the way from chance to 1 at length {REACH * trained}"
            if mixer == "lstm" or (steps == [2] and task == "parity"):
                checks.append(at_least(quantity, skill(kind), TRACKED))
            elif mixer in {"attention", "selective_ssm"} or steps == [1]:
                checks.append(at_most(quantity, skill(kind), LOST))
            elif steps == [2]:
                shorter = of_task.where({"mixer.name": mixer, "mixer.beta_max": 1})
                checks.append(at_least(f"{quantity}, less that with shorter steps", skill(kind) - skill(shorter), 0.1))
            lengths = {n: _at_length(n) for n in kind.runs[0].options["task.test_lengths"]}
            points = {n: kind.median(metric) for n, metric in ({trained: ACCURACY} | lengths).items()}
            curves.append(_curve(label, points))
        title = f"{titles[task].capitalize()}, trained at length {trained}"
        panels.append(_panel(title, "length", "test accuracy", curves, log_x=True, log_y=False))
    return Evidence(tuple(checks), tuple(panels))


# Hybrids


def judge_hybrid_ratio(runs: Runs) -> Evidence:
    """Compare what the share of attention layers gains and costs."""
    checks: list[Check] = []
    found: dict[str, dict[tuple[str, ...], dict[float, float]]] = {}
    for task, of_task in runs.by("task.name"):
        measured = found.setdefault(task, {ACCURACY: {}, STATE: {}, SPEED: {}})
        for pattern, cell in of_task.by("mixer.pattern"):
            share = pattern.count("attention") / len(pattern)
            for metric, values in measured.items():
                values[share] = cell.median(metric)
        accuracy, state, speed = measured.values()
        options = of_task.runs[0].options
        guess = 1 / options["task.n_pairs"] if task == "mqar" else 1 / options["task.n_classes"]
        few = min(share for share in accuracy if share > 0)
        checks += [
            at_most(f"{task}: accuracy without attention", accuracy.get(0.0, math.nan), guess + GUESSED),
            at_least(
                f"{task}: accuracy with {few:.0%} attention less that of attention alone",
                accuracy[few] - accuracy.get(1.0, math.nan),
                -SPREAD,
            ),
            at_least(f"{task}: accuracy of attention alone", accuracy.get(1.0, math.nan), LEARNED),
            near(
                f"{task}: share of attention's growing state at {few:.0%} attention",
                (state[few] - state.get(0.0, math.nan) * (1 - few)) / state.get(1.0, math.nan),
                few,
                0.01,
            ),
            at_least(
                f"{task}: tokens/s with {few:.0%} attention / attention alone",
                speed[few] / speed.get(1.0, math.nan),
                1,
            ),
        ]
    titles = {
        ACCURACY: ("Recall and long memory", "test accuracy"),
        STATE: ("State", "bytes after the sequence"),
        SPEED: ("Speed", "tokens a second in training"),
    }
    panels = tuple(
        _panel(title, "share of attention layers", unit, [_curve(t, m[metric]) for t, m in found.items()], log_y=False)
        for metric, (title, unit) in titles.items()
    )
    return Evidence(tuple(checks), panels)


# Text


def judge_real_text(runs: Runs) -> Evidence:
    """Judge how much of the gain over single symbols each mixer reaches, and which mixer is best."""
    bits = {label: kind.median(BITS) for label, kind in runs.kinds().items()}
    names = {label: kind.values("mixer.name")[0] for label, kind in runs.kinds().items()}
    alone = bits.get("identity", math.nan)
    others = {label: value for label, value in bits.items() if names[label] != "identity"}
    finite = [value for value in others.values() if math.isfinite(value)]
    gain = alone - min(finite, default=math.nan)
    checks = [at_least("bits that the best mixer gains over single symbols", gain, 0.1)]
    checks += [
        at_least(f"{label}: share of the best gain", (alone - value) / (gain or math.nan), 0.5)
        for label, value in others.items()
    ]
    families = {label: MIXERS.entry(name).family for label, name in names.items()}
    groups = [
        [v for label, v in others.items() if (families[label] in RECALLING) is recalls] for recalls in (True, False)
    ]
    first, second = (min(group, default=math.nan) for group in groups)
    checks.append(at_most("bits of the best that recalls less those of the best of the others", first - second, 0))
    seeds = {label: kind.scores(BITS) for label, kind in runs.kinds().items()}
    ordered = sorted(seeds, key=lambda label: bits[label])
    curves = [Curve(at, (n,) * len(seeds[at]), tuple(seeds[at]), "points") for n, at in enumerate(ordered)]
    panel = _panel(
        "Bits per byte of real text",
        "mixers, best first",
        "test bits per symbol",
        curves,
        log_y=False,
        x_names=tuple(ordered),
    )
    return Evidence(tuple(checks), (panel,))


_GHODSI = "Ghodsi, arXiv 2512.15115"

PREDICTIONS: dict[str, Prediction] = {
    "head_count": Prediction(
        f"{_GHODSI} (head counts); weighted Eckart-Young theorem",
        "a median error further than 3 % from the bound below k heads, or above 1e-6 from k heads on",
        judge_head_count,
    ),
    "rank_gap": Prediction(
        f"{_GHODSI} (interaction rank)",
        "one head off its bound by more than 3 %, one softmax head below it, or an SSM above a tenth of it",
        judge_rank_gap,
    ),
    "gradient_highway": Prediction(
        f"{_GHODSI} (gradient propagation)",
        "a needle learned where the gradient had vanished, one that attention does not learn, or gradients that do not "
        "rank what is learned",
        judge_gradient_highway,
    ),
    "recall": Prediction(
        "Arora et al., arXiv 2312.04927 and 2402.18668 (state); Schlag et al., arXiv 2102.11174 (delta rule)",
        "attention that does not recall, fixed coefficients that do, less recall with more state",
        judge_recall,
    ),
    "state_tracking": Prediction(
        "Merrill et al., arXiv 2404.08819; Grazzi et al., arXiv 2411.12537 (negative eigenvalues)",
        "an LSTM that loses the state, attention or decays in [0, 1] that keep it",
        judge_state_tracking,
    ),
    "hybrid_ratio": Prediction(
        f"Lieber et al., arXiv 2403.19887 (Jamba); {_GHODSI}",
        "a stack that recalls or remembers without attention, one attention layer in four that does not, or costs more",
        judge_hybrid_ratio,
    ),
    "real_text": Prediction(
        "Graves, arXiv 1308.0850; Arora et al., arXiv 2312.04927 (recall explains most of the gap on text)",
        "a mixer with less than half of the best gain, or a best one that does not recall",
        judge_real_text,
    ),
}
