"""The experiments: their files mean runs that train.py takes, their judges judge both ways, their page says both."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lab import __main__ as application
from lab.build import build
from lab.config import parse
from lab.experiments import judge as experiments
from lab.experiments.predictions import (
    PREDICTIONS,
    gradient_threshold,
    horizon,
    placement_of_two,
    placement_on_needle,
    placement_probes,
)
from lab.experiments.predictions.functional_heads_one_layer import MIXING
from lab.experiments.predictions.functional_heads_trained import working
from lab.experiments.predictions.gradient_highway import gradient_at_initialisation
from lab.experiments.predictions.skill_to_loss import synthetic_cells
from lab.experiments.predictions.trainability import gradient_at_initialisation as layer_gradient
from lab.experiments.vocabulary import Runs, correlated, not_learned
from lab.plain import flatten, nested
from lab.run.record import Run
from lab.sweep.grid import Grid, expand, read_experiment, values_of
from tests import slow
from tests.lab.runs import error_line, nested_metrics
from zoo.evidence import Check, Samples, at_least

CONFIGS = experiments.EXPERIMENTS
N_RUNS = {
    "head_count": {"small": 50, "full": 160},
    "rank_gap": {"small": 60, "full": 75},
    "gradient_highway": {"small": 77, "full": 249},
    "gradient_threshold": {"small": 240, "full": 240},
    "trainability": {"small": 172, "full": 112},
    "starts_of_mamba": {"small": 20, "full": 20},
    "recall": {"small": 280, "full": 193},
    "recall_capacity": {"small": 172, "full": 202},
    "state_tracking": {"small": 200, "full": 149},
    "reflections": {"small": 15, "full": 30},
    "rotations": {"small": 135, "full": 91},
    "generators": {"small": 60, "full": 37},
    "functional_heads": {"small": 30, "full": 90},
    "functional_heads_trained": {"small": 35, "full": 90},
    "functional_heads_one_layer": {"small": 150, "full": 150},
    "hybrid_ratio": {"small": 52, "full": 62},
    "gates": {"small": 60, "full": 60},
    "gates_on_tasks": {"small": 40, "full": 40},
    "placement": {"small": 60, "full": 120},
    "placement_of_two": {"small": 135, "full": 210},
    "placement_on_needle": {"small": 75, "full": 75},
    "placement_probes": {"small": 140, "full": 70},
    "real_text": {"small": 35, "full": 85},
    "horizon": {"small": 110, "full": 140},
    "copying": {"small": 152, "full": 199},
    "skill_to_loss": {"small": 75, "full": 75},
    "mad": {"small": 24, "full": 396},
}


@functools.cache
def grid_of(name: str, setting: str = "small") -> Grid:
    """The grid without matched widths, which take a while to find."""
    return expand(replace(read_experiment(CONFIGS / f"{name}.yaml", setting), match={}), Path("runs"))


Options = Mapping[str, Any]
Metrics = Callable[[Options], dict[str, float | None]]


def of_options(function: Callable[..., dict[str, float | None]]) -> Callable[..., Metrics]:
    """Given all that the function takes besides the options of a run, its metrics by these."""
    return lambda *given, **named: lambda options: function(options, *given, **named)


def made_up(name: str, metrics: Metrics) -> Runs:
    """All runs of the small setting, as if they had measured what `metrics` says of their options and sizes."""
    runs = []
    for configuration, seeds in grid_of(name):
        for seed in seeds:
            run = Run(Path("x"), configuration.command.config | {"seed": seed}, {}, "tested")
            sizes = {"params": configuration.params, "state_bytes": configuration.state_bytes}
            runs.append(replace(run, metrics=nested_metrics(sizes | metrics(run.options | sizes | {"seed": seed}))))
    return Runs(tuple(runs))


def checks_of(name: str, metrics: Metrics) -> tuple[Check, ...]:
    return PREDICTIONS[name].judge(made_up(name, metrics)).checks


def judged(name: str, metrics: Metrics, verdict: str = "fails") -> list[str]:
    return [check.quantity for check in checks_of(name, metrics) if check.verdict == verdict]


def failed(name: str, metrics: Metrics) -> list[str]:
    checks = checks_of(name, metrics)
    return [
        f"{c.quantity}{end}" for said, end in (("fails", ""), ("undecided", "?")) for c in checks if c.verdict == said
    ]


@pytest.mark.parametrize("setting", ["small", slow("full")])
@pytest.mark.parametrize("name", N_RUNS)
def test_an_experiments_file_means_runs_that_train_takes(name: str, setting: str) -> None:
    found = grid_of(name, setting)
    assert found.n_runs == N_RUNS[name][setting]
    experiment = read_experiment(CONFIGS / f"{name}.yaml", setting)
    assert bool(experiment.prediction) != bool(experiment.score)
    if experiment.prediction and setting == "full":  # docs/results.md says so
        n = math.prod(len(values_of("", option, values)) for option, values in experiment.tune.items())
        trials = n / 4 + math.ceil(n / 2) / 4 - 1 / 2 if n > 1 else 0  # halved after a quarter and a half of the steps
        steps = [(each.command.config["trainer"]["max_steps"], len(seeds)) for each, seeds in found]
        assert sum(per_run * (runs + trials) for per_run, runs in steps) <= 800_000


def test_every_file_has_a_judge_or_a_score_and_every_judge_a_file() -> None:
    judged = {file.stem for file in CONFIGS.glob("*.yaml") if not read_experiment(file, "small").score}
    assert judged == set(PREDICTIONS)


MAD_POINTS = {
    "compression": 11,
    "fuzzy_recall": 11,
    "in_context_recall": 11,
    "memorization": 6,
    "noisy_recall": 14,
    "selective_copying": 13,
}
"""Grid points of each task: its baseline, and what athms/mad-lab's configs/tasks/*.yml list as changes of it."""


@pytest.mark.slow
def test_mads_grid_begins_with_the_published_shapes_and_changes_one_thing_at_a_time() -> None:
    experiment = read_experiment(CONFIGS / "mad.yaml").overridden({"mixer": ["identity"]})
    assert experiment.tune == {"lr": [1e-4, 5e-4, 1e-3], "weight_decay": [0.0, 0.1]}
    by_task: dict[str, list[dict[str, Any]]] = {}
    for configuration, _ in expand(experiment, Path("runs")):
        config = configuration.command.config
        by_task.setdefault(config["task"]["name"], []).append(config)
    assert {task: len(configs) for task, configs in by_task.items()} == MAD_POINTS
    for task, configs in by_task.items():
        name = "selective_copying-mad" if task == "selective_copying" else task
        published = parse(["--config", str(experiments.ROOT / f"configs/task/published/{name}.yaml")]).config
        steps = published["trainer"]["max_steps"] * published["batch_size"]
        assert steps == configs[0]["trainer"]["max_epochs"] * published["task"]["n_train"]
        for key in ("d_model", "n_layers", "d_channel", "batch_size", "beta2", "warmup_steps", "final_lr", "task"):
            assert configs[0][key] == published[key], (task, key)
        own = configs[0]["task"]
        assert all(sum(each["task"][key] != own[key] for key in own) == 1 for each in configs[1:]), task


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["small", "full"])
@pytest.mark.parametrize("name", ["recall", "real_text"])
def test_widths_are_matched(name: str, setting: str) -> None:
    experiment = read_experiment(CONFIGS / f"{name}.yaml", setting)
    found = expand(experiment, Path("runs"))
    assert found.n_runs == N_RUNS[name][setting]
    for configuration, _ in found:
        assert abs(configuration.params / experiment.match["params"] - 1) < 0.05


# Judges


@functools.cache
def bound(k: int, heads: int) -> float:
    from tasks import create_task
    from zoo.theory import head_count_bound

    return head_count_bound(torch.as_tensor(create_task("ssm_teacher", k=k).lags), heads)


@of_options
def heads_at_the_bound(options: Options, factor: float = 1.0) -> dict[str, float | None]:
    k, heads = options["task.k"], options["mixer.n_heads"]
    return {"test/relative_squared_error": factor * (bound(k, heads) if heads < k else 1e-10)}


def test_head_count_judges_both_ways() -> None:
    assert failed("head_count", heads_at_the_bound()) == []
    assert failed("head_count", heads_at_the_bound(1.1)) == [
        f"k={k}, H={h}: error" for k, h in ((2, 1), (4, 1), (4, 2), (4, 3))
    ]
    assert failed("head_count", heads_at_the_bound(0.9)) == failed("head_count", heads_at_the_bound(1.1))
    stuck = failed("head_count", lambda options: {"test/relative_squared_error": 0.01})
    assert "k=4, H=4: error" in stuck
    assert "k=1, H=2: error" in stuck


@of_options
def rank_gap(options: Options, head: float, ssm: float) -> dict[str, float | None]:
    factor = {"factorized": head, "attention": 0.5, "diagonal_ssm": ssm}[options["mixer.name"]]
    return {"test/relative_squared_error": bound(options["task.k"], 1) * factor}


def test_rank_gap_judges_both_ways() -> None:
    assert failed("rank_gap", rank_gap(1, 0.01)) == []  # of the softmax head nothing is predicted
    for off in (0.9, 1.2):
        assert failed("rank_gap", rank_gap(off, 0.01)) == [f"k={k}: error of one head" for k in (2, 4, 8)]
    assert failed("rank_gap", rank_gap(1, 0.5)) == [f"k={k}: error of the SSM" for k in (2, 4, 8)]


@of_options
def learned_if(options: Options, condition: Callable[[Options], bool], low: float) -> dict[str, float | None]:
    return {"test/accuracy": 1.0 if condition(options) else low}


def test_gradient_highway_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(config: Options) -> float:
        options = dict(flatten(config))
        short = options["mixer.name"] in ("lstm", "selective_ssm")
        return math.exp(-0.15 * options["task.distance"]) if short else 1e-2

    monkeypatch.setattr("lab.experiments.predictions.gradient_highway.gradient_at_initialisation", gradient)
    assert failed("gradient_highway", learned_if(lambda options: gradient(options) > 9e-3, 0.12)) == []
    learned_all = failed("gradient_highway", learned_if(lambda options: True, 0.12))
    assert len(learned_all) == 4  # two that cannot have been learned, their share; and nothing is left to rank
    assert learned_all[-1].startswith("probability")
    slowly = learned_if(lambda options: gradient(options) > 9e-3 or options["trainer.max_steps"] > 400, 0.12)
    late = judged("gradient_highway", slowly, "undecided")
    cells = ["selective_ssm, distance 128", "lstm, distance 128"]
    assert [quantity.split(" (")[0] for quantity in late[:2]] == cells
    assert late[2].startswith("share of 10 runs")  # those that learned late are no evidence that none learns
    assert len(late) == 3
    untrained = learned_if(lambda options: options["mixer.name"] == "attention", 0.12)
    assert not any(" distance 128 (gradient" in quantity for quantity in judged("gradient_highway", untrained, "holds"))
    turned = failed("gradient_highway", learned_if(lambda options: gradient(options) < 1e-4, 0.12))
    assert any(quantity.startswith("attention, distance 128") for quantity in turned)
    assert any("probability" in quantity for quantity in turned)


def test_the_gradient_before_training_tells_a_highway_from_a_short_memory() -> None:
    found = {
        (run.mixer, run.options.get("mixer.dt_min"), run.options["task.distance"]): run.config
        for run in made_up("gradient_highway", lambda _: {}).runs
    }
    highway = gradient_at_initialisation(found["attention", None, 128], n_draws=2)
    short = gradient_at_initialisation(found["lstm", None, 128], n_draws=2)
    assert highway > 1e-2
    assert 0 < short < 1e-9


def test_the_gradient_before_training_is_measured_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo import theory

    profile, measured = theory.gradient_profile, []
    monkeypatch.setattr(theory, "gradient_profile", lambda *a, **k: measured.append(profile(*a, **k)) or measured[-1])
    config = next(run.config for run in made_up("gradient_highway", lambda _: {}).runs)
    task = config["task"] | {"distance": 8}
    gradient_at_initialisation(config | {"task": task}, n_draws=1)
    assert [found.values.dtype for found in measured] == [torch.float64]


@of_options
def trains(options: Options, learns: Callable[[Options], bool], slower: float = 1.0) -> dict[str, float | None]:
    easy = options["task.n_pairs"] == 1
    steps = 500 - slower * 100 * math.log10(start_gradient(nested(options))) if learns(options) else None
    return {"test/accuracy": 1.0 if easy or learns(options) else 0.25, "steps_to_90": steps}


def start_gradient(config: Mapping[str, Any], n_draws: int = 5) -> float:
    """Stands in for the measurement: a number for each start, smaller where less is written."""
    mixer = config["mixer"]
    if mixer.get("init") == "published" or mixer["name"] == "lstm":
        return 1e-3
    return 0.1 * (mixer.get("dt_max") or 1) if mixer["name"] == "ssd" else 0.2


def mended(options: Options) -> bool:
    shallow = options["n_layers"] == 1 or options.get("mixer.out_norm_eps") is not None
    return options["mixer.name"] != "lstm" and options.get("mixer.init") != "published" and shallow


def test_trainability_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.experiments.predictions.trainability.gradient_at_initialisation", start_gradient)
    assert failed("trainability", trains(mended)) == []
    assert any("step size" in quantity for quantity in judged("trainability", trains(mended, slower=-1)))
    learned_all = failed("trainability", trains(lambda options: True))
    assert [quantity for quantity in learned_all if quantity.endswith("accuracy")] != []
    assert sum("accuracy gained" in quantity for quantity in learned_all) == 2
    longer = failed("trainability", trains(lambda options: mended(options) or options["trainer.max_steps"] > 400))
    assert len(longer) == 2  # more training helps: that the published starts guess says nothing
    assert all(quantity.endswith("accuracy?") for quantity in longer)
    assert "ssd, dt_max None" in "".join(failed("trainability", trains(lambda options: False)))


def test_gradient_threshold_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(config: Mapping[str, Any]) -> float:
        reach = {"attention": 1e9, "lstm": 100.0, "selective_ssm": 300.0, "ssd": 200.0, "diagonal_ssm": 50.0}
        return math.exp(-config["task"]["distance"] / reach.get(config["mixer"]["name"], 10.0))

    def tested(options: Options) -> bool:
        """Tell whether a run is of every second mixer or start, on which no limit is fitted."""
        other = {"mixer.forget_bias": 4.0, "mixer.init": "recall", "mixer.dt_min": 0.1}
        return options["mixer.name"] in ("rnn", "attention") or any(options.get(key) == other[key] for key in other)

    def by_gradient(at: float, rises: bool = True, there: bool | None = None) -> list[str]:
        def metrics(options: Options) -> dict[str, float | None]:
            config = {"task": {"distance": options["task.distance"]}, "mixer": {"name": options["mixer.name"]}}
            gone = gradient(config)
            learned = (gone > at) is (rises if there is None or not tested(options) else there)
            return {"test/accuracy": 1.0 if learned else 0.2, "steps_to_90": 100 - 50 * gone if learned else None}

        return failed("gradient_threshold", metrics)

    monkeypatch.setattr("lab.experiments.predictions.gradient_threshold.gradient_at_initialisation", gradient)
    assert by_gradient(at=0.12) == []
    other_way = by_gradient(at=0.12, rises=False)
    assert len(other_way) == 4
    assert sum(each.startswith("rank correlation") for each in other_way) == 3
    told = by_gradient(at=0.12, there=False)[0]  # the limit that was fitted is wrong about each of the others
    assert told.startswith("share of cells of the other mixers and starts")
    everything = by_gradient(at=0.0)  # all are learned: the limit tells no more than the commoner outcome
    assert any(each.endswith("the commoner outcome 1.00)?") for each in everything)


def test_a_limit_is_fitted_where_it_errs_least() -> None:
    cells = [
        gradient_threshold.Cell(10.0**n, accuracy, 0.0) for n, accuracy in ((-9, 0.1), (-6, 0.1), (-2, 1.0), (0, 1.0))
    ]
    assert gradient_threshold.limit(cells) == pytest.approx(1e-4)
    late = gradient_threshold.Cell(1e-7, 1.0, 0.0)
    assert gradient_threshold.limit([*cells, late]) == pytest.approx(1e-4)
    assert gradient_threshold.rightly_told([*cells, late], 1e-4) == 4
    assert gradient_threshold.limit(cells[2:]) < 1e-2


@of_options
def started(options: Options, slower: Mapping[str, float], learned: float = 0.95) -> dict[str, float | None]:
    """So many times the steps without each of the changes to the start; none where it is never learned."""
    kept = {
        "writes": options["mixer.init"] == "recall",
        "norms": options.get("mixer.norm_eps") is not None,
        "output": options.get("mixer.out_norm_eps") is not None,
    }
    times = math.prod(slower[what] for what, there in kept.items() if not there)
    return {"steps_to_90": 200 * times if times < 8 else None, "test/accuracy": learned if times < 8 else 0.3}


def test_starts_of_mamba_judges_both_ways() -> None:
    assert failed("starts_of_mamba", started({"writes": 9.0, "norms": 3.0, "output": 1.5})) == []
    steps = "steps to 90 % without {} / with all three".format
    assert judged("starts_of_mamba", started({"writes": 1.5, "norms": 1.5, "output": 0.9})) == [
        steps(what) for what in ("strong writes", "norms of B, C and dt", "the norm of the output")
    ]
    needed = judged("starts_of_mamba", started({"writes": 9.0, "norms": 9.0, "output": 9.0}))
    assert needed == ["without the norm of the output: accuracy"]
    assert len(judged("starts_of_mamba", started({"writes": 3.0, "norms": 3.0, "output": 1.5}, learned=0.5))) == 2


def test_the_gradient_of_a_layer_before_training_sees_strong_writes() -> None:
    starts = [{"mixer": {"name": "ssd", "d_state": 4, "init": init}} for init in ("published", "recall")]
    weak, strong = (layer_gradient({**start, "d_model": 8, "task": {"seq_len": 16}}) for start in starts)
    assert 0 < 10 * weak < strong < 1


def test_a_negative_says_something_only_with_its_control_and_with_longer_training() -> None:
    scores = dict.fromkeys(range(5), 0.2)
    control = at_least("that with one pair", dict.fromkeys(range(5), 1.0), 0.9)

    def judged(longer: Samples, scores: Samples = scores, control: Check = control) -> Check:
        return not_learned("accuracy", scores, 0.3, control, longer)

    assert judged({0: 0.25}).verdict == "holds"
    untried = "says nothing, because its control does not hold: the largest after 4 times the training is nan"
    assert judged({7: 0.25}).reason.startswith(untried)
    assert judged({}).reason.startswith(untried)
    assert judged({}, dict.fromkeys(range(5), 0.9)).verdict == "fails"
    assert judged(dict.fromkeys(range(5), 0.5)).verdict == "fails"
    assert judged({0: 0.5}).verdict == "undecided"
    assert "the largest after 4 times the training is 0.5" in judged({0: 0.5}, dict.fromkeys(range(10), 0.2)).reason
    assert judged({0: math.nan}).reason == "no number for seed 0"
    assert judged({0: 0.25}, scores | {0: math.nan}).reason == "no number for seed 0"
    assert judged({0: 0.1}, dict.fromkeys(range(5), 0.5)).verdict == "fails"
    untrained = at_least("that with one pair", dict.fromkeys(range(5), 0.5), 0.9)
    assert "its control does not hold" in judged({0: 0.25}, control=untrained).reason


@of_options
def recall(
    options: Options,
    delta: float = 0.1,
    diagonal: float = 0.25,
    grows: float = 0.1,
    one_pair: float = 1.0,
    longer: float = 0.25,
) -> dict[str, float | None]:
    fixed = one_pair if options["task.n_pairs"] == 1 else longer if options["trainer.max_steps"] > 600 else diagonal
    learned = 0.4 + grows * math.log(options["state_bytes"] / 4096) + delta * (options["mixer.name"] == "delta_net")
    return {"test/accuracy": {"attention": 0.99, "diagonal_ssm": fixed}.get(options["mixer.name"], learned)}


def test_recall_judges_both_ways() -> None:
    assert failed("recall", recall()) == []
    fixed = ["diagonal_ssm: accuracy, the larger of those after 1 and 4 times the training (20 seeds)"]
    assert judged("recall", recall(diagonal=0.5)) == fixed
    assert judged("recall", recall(one_pair=0.5), "undecided") == fixed
    assert judged("recall", recall(longer=0.5)) == fixed
    assert judged("recall", recall(delta=-0.3))[-1] == "heads of 8: delta rule's accuracy beyond linear attention's"
    less = failed("recall", recall(grows=-0.1))
    assert any("rank correlation" in quantity for quantity in less)
    assert any("linear_attention: accuracy gained" in quantity for quantity in less)


@of_options
def recalled(
    options: Options,
    fixed: float = 0.15,
    longer: float = 0.15,
    one_pair: float = 1.0,
    attention: float = 0.99,
    rises: float = 0.08,
    lost: Mapping[str, float] = {"ssd": 0.01},
) -> dict[str, float | None]:
    name, n_pairs = options["mixer.name"], options["task.n_pairs"]
    of_fixed = one_pair if n_pairs == 1 else longer if options["trainer.max_steps"] > 600 else fixed
    of_state = 0.9 + rises * math.log2(options["state_bytes"] / 4096) / 4 - lost.get(name, 0.1) * math.log2(n_pairs / 4)
    known = {"attention": attention} | dict.fromkeys(("diagonal_ssm", "s4d"), of_fixed)
    return {"test/accuracy": known.get(name, of_state + 0.05)}


def test_recall_capacity_judges_both_ways() -> None:
    assert failed("recall_capacity", recalled()) == []
    after = "on 8 pairs, the larger of those after 1 and 4 times the training (1 seed)"
    lti = [f"{name}: accuracy {after}" for name in ("diagonal_ssm", "s4d")]
    assert judged("recall_capacity", recalled(fixed=0.5)) == lti
    assert judged("recall_capacity", recalled(longer=0.5), "undecided") == lti
    assert judged("recall_capacity", recalled(one_pair=0.5), "undecided") == lti
    assert judged("recall_capacity", recalled(attention=0.8)) == [f"attention: accuracy on {n} pairs" for n in (8, 16)]
    falls = failed("recall_capacity", recalled(rises=-0.08))
    assert any("of state and accuracy on 8 pairs, over mixers" in each for each in falls)
    kept = failed("recall_capacity", recalled(lost={"ssd": 0.1, "delta_net": 0.0}))
    assert {"delta_net: accuracy lost from 8 to 16 pairs", "ssd: accuracy lost from 8 to 16 pairs"} <= set(kept)


@of_options
def tracking(
    options: Options, reflects: float = 0.9, others: float = 0.2, longer: float = 0.2, short: float = 1.0
) -> dict[str, float | None]:
    group = options["task.group"]
    chance = {"Z2": 1 / 2, "S3": 1 / 6}[group]
    enough = options.get("mixer.beta_max") == 2 and (group, options["mixer.n_householder"]) != ("S3", 1)
    kept = 0.9 if options["mixer.name"] == "slstm" else reflects if enough else others
    kept = longer if options["trainer.max_steps"] > 1000 else kept
    far, trained = (chance + skill * (1 - chance) for skill in (kept, short))
    return {"chance": chance, "test/accuracy": trained, "test/at_length/32/accuracy": far}


def test_state_tracking_judges_both_ways() -> None:
    assert failed("state_tracking", tracking()) == []
    assert len(judged("state_tracking", tracking(reflects=0.3))) == 2
    assert len(judged("state_tracking", tracking(others=0.6))) == 4
    assert len(judged("state_tracking", tracking(longer=0.6))) == 4  # with all seeds
    assert len(judged("state_tracking", tracking(short=0.6), "undecided")) == 4


@of_options
def rotating(
    options: Options, enough: float = 0.9, others: float = 0.2, longer: float = 0.2, easy: float = 1.0
) -> dict[str, float | None]:
    chance = 1 / int(options["task.group"][1])
    kept = options["mixer.name"] == "slstm" or options.get("mixer.n_householder", 0) > 1
    skill = enough if kept else longer if options["trainer.max_steps"] > 1000 else others
    far, trained = (chance + each * (1 - chance) for each in (skill, easy))
    return {"chance": chance, "test/accuracy": trained, "test/at_length/32/accuracy": far}


def test_rotations_judges_both_ways() -> None:
    assert failed("rotations", rotating()) == []
    kept = ["delta_product, n_householder 2", "delta_product, n_householder 3", "slstm"]
    of = "share of the way from chance to 1 at length 32"
    assert judged("rotations", rotating(enough=0.5)) == [f"Z3, {each}: {of}" for each in kept]
    lost = [
        f"Z3, {each}: {of}, the larger of those after 1 and 4 times the training (15 seeds)"
        for each in ("delta_product, n_householder 1", "attention")
    ]
    assert judged("rotations", rotating(others=0.6)) == lost
    assert judged("rotations", rotating(longer=0.6)) == lost
    assert judged("rotations", rotating(easy=0.6), "undecided") == lost


@of_options
def generated(
    options: Options, enough: float = 0.95, others: float = 0.2, longer: float = 0.2, easy: float = 1.0
) -> dict[str, float | None]:
    swaps = options["task.group"] == "S5"
    kept = options["mixer.name"] == "slstm" or options.get("mixer.n_householder", 0) > 1 - swaps
    far = enough if kept else longer if options["trainer.max_steps"] > 1000 else others
    return {"test/accuracy": easy, "test/at_length/64/accuracy": far}


def test_generators_judges_both_ways() -> None:
    assert failed("generators", generated()) == []
    once, *twice = (f"delta_product, n_householder {n}" for n in (1, 2, 3))
    far, also = "accuracy at length 64", "the larger of those after 1 and 4 times the training (5 seeds)"
    kept = [f"S5, {once}: {far}", *(f"A5, {each}: {far}" for each in (*twice, "slstm"))]
    assert judged("generators", generated(enough=0.5)) == kept
    lost = [f"A5, {each}: {far}, {also}" for each in (once, "attention")]
    assert [judged("generators", generated(**{name: 0.6})) for name in ("others", "longer")] == [lost, lost]
    assert judged("generators", generated(easy=0.6), "undecided") == lost


@of_options
def reflecting(options: Options, lead: Mapping[int, float], Z2: float = 0.99) -> dict[str, float | None]:
    """Two reflections per token ahead of one by so much at a length."""
    two = options["mixer.n_householder"] == 2
    scores = {n: Z2 if options["task.group"] == "Z2" else 0.4 + two * by for n, by in lead.items()}
    return {"test/accuracy": 1.0, **{f"test/at_length/{n}/accuracy": score for n, score in scores.items()}}


def test_reflections_judges_both_ways() -> None:
    assert failed("reflections", reflecting({16: 0.1, 32: 0.3})) == []
    assert judged("reflections", reflecting({16: -0.1, 32: 0.1})) == [
        f"S3: accuracy that a second reflection gains at length {n}" for n in (16, 32)
    ]
    assert len(judged("reflections", reflecting({16: 0.1, 32: 0.3}, Z2=0.5), "undecided")) == 2  # the control fails
    assert len(failed("reflections", reflecting({16: 0.1, 32: 0.3}, Z2=0.5))) == 3


def layers(few: int | None = 1, without: float = 0.1) -> Callable[[Run], list[dict[str, Any]]]:
    """Two layers of which the second needs `few` operators of 20, and the model guesses without it."""
    copied = {"rank": 40, "heads": {"0.1": 20, "0.01": 30}}
    first = {"functional_heads": 0, "score_by_heads": {"0": 1.0, "1": 1.0}}
    second = {"functional_heads": few, "score_by_heads": {"0": without, "1": 1.0}}
    return lambda run: [copied | first, copied | second]


@pytest.mark.parametrize(("name", "n_mixers"), [("functional_heads", 6), ("functional_heads_trained", 7)])
def test_functional_heads_judges_both_ways(name: str, n_mixers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learned, measured = learned_if(lambda options: True, 0.1), f"lab.experiments.predictions.{name}.layers_of"
    for found, failing, undecided in (
        (layers(), 0, 0),
        (layers(5), 1, 0),  # a quarter of those that copy it, but more than four
        (layers(6), 2, 0),
        (layers(None), 2, 0),
        (layers(without=0.9), 0, 2),  # nothing needs the layer
    ):
        monkeypatch.setattr(measured, found)
        assert len(judged(name, learned)) == failing * n_mixers
        assert len(judged(name, learned, "undecided")) == undecided * n_mixers
    monkeypatch.setattr(measured, layers())
    assert len(judged(name, learned_if(lambda options: False, 0.5), "undecided")) == 2 * n_mixers


def test_functional_heads_says_nothing_of_models_that_have_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.experiments.predictions.functional_heads.layers_of", layers(None))
    assert len(judged("functional_heads", learned_if(lambda options: False, 0.5), "undecided")) == 12


def one_layer(
    mixing: int | None = 5, others: int | None = 1, without: float = 0.1
) -> Callable[[Run], list[dict[str, Any]]]:
    """The only layer of a model: of 20 operators that copy it, what nets that mix channels need, and what others do."""
    scores = {"score_by_heads": {"0": without, "1": 1.0}}
    copied = {"rank": 40, "heads": {"0.1": 20}} | scores
    return lambda run: [copied | {"functional_heads": mixing if run.mixer in MIXING else others}]


def test_functional_heads_of_one_layer_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    name, learned = "functional_heads_one_layer", learned_if(lambda options: True, 0.1)
    place = f"lab.experiments.predictions.{name}.layers_of"
    for found, failing, undecided in (
        (one_layer(), 0, 0),
        (one_layer(others=4), 0, 0),
        (one_layer(others=5), 26, 0),  # more than four, though less than a third of those that copy it
        (one_layer(others=None), 27, 0),
        (one_layer(mixing=4), 4, 0),
        (one_layer(mixing=None), 0, 0),
        (one_layer(without=0.9), 0, 30),  # nothing needs the layer
    ):
        monkeypatch.setattr(place, found)
        assert len(judged(name, learned)) == failing
        assert len(judged(name, learned, "undecided")) == undecided
    monkeypatch.setattr(place, one_layer())
    guessing = learned_if(lambda options: options["task.name"] == "mqar", 0.12)
    assert all(quantity.startswith("needle") for quantity in judged(name, guessing, "undecided"))
    assert len(judged(name, guessing, "undecided")) == 13


def test_the_layer_that_does_the_work_is_the_one_whose_absence_costs_most() -> None:
    idle, busy = ({"functional_heads": n, "score_by_heads": {"0": score}} for n, score in ((12, 0.9), (1, 0.2)))
    assert working([idle, busy]) is busy


@of_options
def hybrids(
    options: Options, one: float = 0.99, none: float = 0.12, easy: float = 1.0, longer: float = 0.12
) -> dict[str, float | None]:
    pattern = options["mixer.pattern"]
    share = pattern.count("attention") / len(pattern)
    easier = options.get("task.n_pairs") == 1 or options.get("task.distance") == 8
    without = longer if options["trainer.max_steps"] > 400 else none
    return {"test/accuracy": easy if easier else {0.0: without, 1.0: 1.0}.get(share, one)}


def test_hybrid_ratio_judges_both_ways() -> None:
    assert failed("hybrid_ratio", hybrids()) == []
    tried = "the larger of those after 1 and 4 times the training (1 seed)"
    negatives = [f"{task}: accuracy without attention, {tried}" for task in ("mqar", "needle")]
    assert failed("hybrid_ratio", hybrids(none=0.9)) == negatives
    assert len(failed("hybrid_ratio", hybrids(one=0.5))) == 2
    for undecided in (hybrids(easy=0.5), hybrids(longer=0.9)):
        assert failed("hybrid_ratio", undecided) == [f"{quantity}?" for quantity in negatives]


@of_options
def copied(
    options: Options,
    small: float = 0.3,
    large: float = 0.9,
    easy: float = 1.0,
    longer: float = 0.3,
    further: float = 1.0,
) -> dict[str, float | None]:
    """Fixed states of two sizes on the longest string; the shortest one; four times the training; attention's reach."""
    if options["mixer.name"] == "attention":
        return {"test/accuracy": 1.0, "test/by_segment/seq_len=96,n_copied=48/accuracy": further}
    held = longer if options["trainer.max_steps"] > 600 else large if options["mixer.d_head"] > 4 else small
    return {"test/accuracy": {6: easy, 12: (easy + held) / 2, 24: held}[options["task.n_copied"]]}


def test_copying_judges_both_ways() -> None:
    assert failed("copying", copied()) == []
    assert judged("copying", copied(further=0.5)) == ["attention trained on 24 tokens: accuracy on 48"]
    trained = "the larger of those after 1 and 4 times the training (1 seed)"
    held = [f"{name}, heads of 4: accuracy on 24 tokens, {trained}" for name in ("delta_net", "linear_attention")]
    assert judged("copying", copied(small=0.85))[:1] == held[:1]
    assert judged("copying", copied(easy=0.8), "undecided") == held
    assert judged("copying", copied(longer=0.8), "undecided") == held
    assert len(judged("copying", copied(large=0.3))) >= 2  # more state holds no more


@functools.cache
def of_the_leaderboard() -> list[str]:
    """The mixers of `skill_to_loss`."""
    configs = (configuration.command.config for configuration, _ in grid_of("skill_to_loss"))
    return list(dict.fromkeys(config["mixer"]["name"] for config in configs))


@of_options
def skilled(options: Options, bits: Callable[[int], float]) -> dict[str, float | None]:
    """Bits of text by the place of the mixer among those of the leaderboard."""
    return {"test/bits_per_token": bits(of_the_leaderboard().index(options["mixer.name"]))}


def board(*lost: tuple[str, str]) -> Callable[[], tuple[list[str], dict[tuple[str, str], dict[str, Any]]]]:
    """Two tasks, of which the first mixers are the best at one and have the least error of the other."""
    cells = {}
    for at, name in enumerate(of_the_leaderboard()):
        cells[name, "mqar"] = {"metric": "accuracy", "score": 1 - at / 100}
        cells[name, "in_context_regression"] = {"metric": "relative_squared_error", "score": at / 100}
    return lambda: (["mqar", "in_context_regression"], {key: cell for key, cell in cells.items() if key not in lost})


def test_skill_to_loss_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "lab.experiments.predictions.skill_to_loss.synthetic_cells"
    correlation, apart = "rank correlation of skill and fewer bits of text, over mixers", "bits between the best mixer"
    monkeypatch.setattr(place, board())
    assert failed("skill_to_loss", skilled(lambda at: 2 + 0.1 * at)) == []
    assert judged("skill_to_loss", skilled(lambda at: 3 - 0.1 * at)) == [correlation]
    half = skilled(lambda at: 2 + at + 14 * (at % 2))  # a rank correlation of 0.5
    assert judged("skill_to_loss", half, "undecided") == [correlation]
    alike = skilled(lambda at: 2 + 0.001 * at)
    assert judged("skill_to_loss", alike, "undecided") == [correlation]
    assert judged("skill_to_loss", alike)[0].startswith(apart)
    monkeypatch.setattr(place, board(("lstm", "mqar")))
    (check, _) = checks_of("skill_to_loss", skilled(lambda at: 2 + 0.1 * at))
    assert (check.verdict, check.reason) == ("undecided", "the leaderboard lacks 1 cell: lstm on mqar")


def test_the_synthetic_tasks_are_those_of_the_leaderboard() -> None:
    tasks, _ = synthetic_cells()
    assert len(tasks) == 8
    assert "text" not in tasks


def test_a_horizon_is_where_spread_that_grows_meets_the_distance(generator: torch.Generator) -> None:
    """Two elements ten apart; each step adds noise of variance one, so that 10 / (2 sqrt(t)) falls to 1.28 at 15.2."""
    labels = torch.randint(2, (4000, 8), generator=generator)
    walk = torch.randn(4000, 8, 3, generator=generator).cumsum(1)
    states = walk + torch.stack([10.0 * labels, 0.0 * labels, 0.0 * labels], 2)
    found = horizon.separations(states, labels)
    assert found == pytest.approx([5 / math.sqrt(t) for t in range(1, 9)], rel=0.05)
    assert horizon.extrapolated(found, 8) == pytest.approx((5 / horizon.READABLE) ** 2, rel=0.15)
    assert horizon.extrapolated(found[::-1], 8) == math.inf  # they part
    assert horizon.separations(states[:, :1], 0 * labels[:, :1]) == [0]  # a single element has no other


def test_horizon_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_cell(measured: Callable[[int], float], outlier: float = 0.0) -> list[str]:
        """Give every cell a number, which its seeds 11 to 14 have; seed 10 is off in its own way."""
        numbers: dict[str, int] = {}

        def found(run: Run) -> tuple[float, float]:
            cell = json.dumps({key: value for key, value in run.options.items() if key != "seed"}, sort_keys=True)
            number = numbers.setdefault(cell, len(numbers))
            return 10.0 + number, measured(number) + (outlier if run.seed == 10 else 0)

        monkeypatch.setattr(horizon, "horizons", found)
        (check,) = checks_of("horizon", lambda _: {})
        assert len(numbers) == 22
        return [check.verdict, check.reason]

    assert by_cell(lambda number: 10 + 2 * number) == ["holds", ""]
    assert by_cell(lambda number: 10 + 2 * number, outlier=-100) == ["holds", ""]
    assert by_cell(lambda number: 40 - number) == ["fails", ""]
    assert by_cell(lambda number: 10 + (number % 5) * 5 + number)[0] == "undecided"
    assert by_cell(lambda number: 3)[1] == "0 cells of the 10 that must hold the state up to length 8"


@of_options
def gated(options: Options, by_channel: Callable[[int], float]) -> dict[str, float | None]:
    """Gates per channel with so much of the error of those per head at rank k."""
    channel = options.get("mixer.gate") == "channel" or options["mixer.name"] == "gdn2"
    return {"test/relative_squared_error": 0.1 * options["task.k"] * (by_channel(options["task.k"]) if channel else 1)}


def test_gates_judges_both_ways() -> None:
    assert failed("gates", gated(lambda k: 1 - 0.05 * k)) == []
    everywhere = judged("gates", gated(lambda k: 0.9 + 0.001 * k))  # a gain that the rank does not ask for
    assert everywhere == [f"{label}: log of what is gained at k=8 / at k=1" for label in ("attention", "delta rule")]
    assert len(judged("gates", gated(lambda k: 1 + 0.05 * k))) == 6


@of_options
def gated_task(
    options: Options, recalled: float = 0.98, gain: float = 0.0, saved: float = 0.1
) -> dict[str, float | None]:
    channel = options.get("mixer.gate") == "channel" or options["mixer.name"] == "gdn2"
    return {"test/accuracy": recalled + channel * gain, "test/bits_per_token": 3.0 - channel * saved}


def test_gates_on_tasks_judges_both_ways() -> None:
    recall = [f"{label}: accuracy of recall gained by gates per channel" for label in ("attention", "delta rule")]
    assert failed("gates_on_tasks", gated_task()) == []
    assert judged("gates_on_tasks", gated_task(gain=-0.06)) == recall
    assert judged("gates_on_tasks", gated_task(recalled=0.5), "undecided") == recall
    bits = judged("gates_on_tasks", gated_task(saved=-0.01))
    assert bits == [
        f"{label}: bits per byte of text saved by gates per channel" for label in ("attention", "delta rule")
    ]


def placed(between: float, accuracy: float = 0.95, by_seed: float = 0.0) -> Metrics:
    """Log losses that differ by so much from placement to placement, by noise, and from seed to seed everywhere."""
    rng = np.random.default_rng(0)

    def metrics(options: Options) -> dict[str, float | None]:
        place = options["mixer.pattern"].index("attention")
        log_loss = between * place + 0.1 * rng.normal() + by_seed * options["seed"]
        return {"test/loss": math.exp(log_loss), "test/accuracy": accuracy}

    return metrics


def test_placement_judges_both_ways() -> None:
    assert failed("placement", placed(1.0)) == []
    ratios = [f"{task}: variance of the log loss between placements / between seeds" for task in ("mqar", "needle")]
    assert judged("placement", placed(0.0), "undecided") == ratios
    assert judged("placement", placed(0.0, by_seed=1.0)) == ratios
    assert len(judged("placement", placed(1.0, accuracy=0.5))) == 2


def placed_two(between: float = 1.0, lowest: float = 0.7, with_first: float = 0.0, without: float = 0.0) -> Metrics:
    """Losses and accuracies by the first attention layer, and what a pair gains with the first place and without it."""
    rng = np.random.default_rng(0)

    def metrics(options: Options) -> dict[str, float | None]:
        first, several = options["mixer.pattern"].index("attention"), options["mixer.pattern"].count("attention") > 1
        gain = several * (without if first else with_first)
        log_loss = between * first + 0.1 * rng.normal()
        return {"test/loss": math.exp(log_loss), "test/accuracy": lowest + 0.06 * (5 - first) + gain}

    return metrics


def test_placement_of_two_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(rises: bool) -> None:
        def gradient(config: Any) -> float:
            return (-1 if rises else 1) * config["mixer"]["pattern"].index("attention")

        monkeypatch.setattr("lab.experiments.predictions.placement_of_two.gradient_at_initialisation", gradient)

    told(rises=True)
    assert failed("placement_of_two", placed_two()) == []
    assert len(judged("placement_of_two", placed_two(lowest=0.2))) == 2
    ratios = [each for each in failed("placement_of_two", placed_two(between=0.0)) if "variance" in each]
    assert len(ratios) == 2
    pairs = "mqar: accuracy of pairs {} place 1 beyond the better of their layers alone, median of pairs".format
    assert judged("placement_of_two", placed_two(with_first=-0.06)) == [pairs("with")]
    assert judged("placement_of_two", placed_two(without=0.06)) == [pairs("without")]
    told(rises=False)
    assert judged("placement_of_two", placed_two()) == [
        f"{task}: rank correlation of the gradient before training and minus the loss, over placements"
        for task in ("mqar", "k_hop")
    ]


def test_the_gradient_of_a_stack_is_larger_where_attention_comes_first() -> None:
    first, *_, last = list(grid_of("placement_of_two"))[:6]
    gradients = [
        placement_of_two.gradient_at_initialisation(configuration.command.config, n_draws=1)
        for configuration, _ in (first, last)
    ]
    assert gradients[0] > 2 * gradients[1] > 0


def test_placement_on_needle_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = "lab.experiments.predictions.placement_of_two.gradient_at_initialisation"
    monkeypatch.setattr(gradient, lambda config: -config["mixer"]["pattern"].index("attention"))
    assert failed("placement_on_needle", placed(1.0)) == []
    ratio = "needle, pairs: variance of the log loss between placements / between seeds"
    assert ratio in failed("placement_on_needle", placed(0.0))
    assert ratio in judged("placement_on_needle", placed(0.0, by_seed=10.0))
    learned = "needle, pairs: accuracy of the best placement"
    assert judged("placement_on_needle", placed(1.0, accuracy=0.5)) == [learned]
    monkeypatch.setattr(gradient, lambda config: config["mixer"]["pattern"].index("attention"))
    rank = "needle: rank correlation of the gradient before training and minus the loss, pairs"
    assert judged("placement_on_needle", placed(1.0)) == [rank]


def test_the_gradient_at_a_needle_is_read_at_its_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = grid_of("placement_on_needle")
    config = first[0].command.config
    asked = []
    gradient = "lab.experiments.predictions.placement_of_two.gradient_at_initialisation"
    monkeypatch.setattr(gradient, lambda config: asked.append(config["task"]["seq_len"]) or 0.5)
    assert placement_on_needle.gradient_at_the_needle(config) == 0.5
    assert asked == [2 * 64]
    assert config["task"]["seq_len"] is None
    monkeypatch.undo()
    assert 0 < placement_on_needle.gradient_at_the_needle(config) < 1


@of_options
def probed(options: Options, best: float = 0.95, rest: float = 0.26) -> dict[str, float | None]:
    return {"test/accuracy": best if options["mixer.pattern"][0] == "attention" else rest}


def let_probes_pick(monkeypatch: pytest.MonkeyPatch, gradient: int = 1, restored: int = 1, heads: int = 4) -> None:
    for name, measure in {
        "gradient_at_initialisation": lambda config: config["mixer"]["pattern"].index("attention") == gradient - 1,
        "restored_losses": lambda run, mixed: {place: place != restored for place in range(1, 7)},
        "heads_by_place": lambda run: {place: place == heads for place in range(1, 7)},
    }.items():
        monkeypatch.setattr(f"lab.experiments.predictions.placement_probes.{name}", measure)


def test_placement_probes_judges_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "accuracy lost against the seed's best place by the one with"
    let_probes_pick(monkeypatch)
    assert failed("placement_probes", probed()) == []
    assert judged("placement_probes", probed(best=0.5)) == ["mqar: accuracy of the best place"]
    let_probes_pick(monkeypatch, gradient=2, restored=3, heads=1)
    assert judged("placement_probes", probed()) == [
        f"{lost} the largest gradient before training",
        f"{lost} the least loss when its layer is restored",
        f"{lost} most heads in a stack of attention",
    ]


def test_probes_are_measured_layer_by_layer_and_distilling_brings_a_stack_nearer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher, mixed = (found.command.config for found, _ in list(grid_of("placement_probes"))[:2])
    short = {"n_layers": 2, "task": teacher["task"] | {"seq_len": 16}}
    config = teacher | short | {"mixer": teacher["mixer"] | {"pattern": ["attention"] * 2}}
    torch.manual_seed(0)
    _, model = build(config)
    monkeypatch.setattr("zoo.loading.saved.load", lambda folder: model)
    run = Run(Path("x"), config, {}, "tested")
    found = []
    for n_steps in (0, 40, 40):
        monkeypatch.setattr(placement_probes, "DISTILLED", n_steps)
        monkeypatch.setattr(placement_probes, "RESTORED", n_steps // 4)
        found.append(placement_probes.restored_losses(run, mixed | short))
    untrained, distilled, again = found
    assert set(distilled) == {1, 2}
    assert all(0 < distilled[place] < 0.5 * untrained[place] for place in distilled)
    assert distilled == again
    heads = placement_probes.heads_by_place(run)
    assert set(heads) == {1, 2}
    assert all(1 <= n <= 16 + 12 for n in heads.values())


@of_options
def text(options: Options, **bits: float) -> dict[str, float | None]:
    return {"test/bits_per_token": ({"identity": 4.0, "attention": 2.8} | bits).get(options["mixer.name"], 3.0)}


@of_options
def noisy_text(options: Options, rng: np.random.Generator) -> dict[str, float | None]:
    """Every mixer gains as much, but for noise that differs from seed to seed."""
    return {"test/bits_per_token": 4.0 if options["mixer.name"] == "identity" else 3.0 + 0.1 * rng.normal()}


def test_real_text_judges_both_ways() -> None:
    best = "bits of the best that recalls less those of the best of the others"
    assert failed("real_text", text()) == []
    assert failed("real_text", text(conv=3.9)) == ["conv: share of the best gain"]
    assert failed("real_text", text(lstm=2.7)) == [best]
    assert len(failed("real_text", text(identity=2.8))) > 2
    assert best in judged("real_text", noisy_text(np.random.default_rng(0)), "undecided")  # no mixer is better


@pytest.mark.parametrize("name", PREDICTIONS)
def test_runs_without_a_score_never_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gradient_highway", "gradient_threshold", "trainability", "placement_of_two"):
        monkeypatch.setattr(f"lab.experiments.predictions.{module}.gradient_at_initialisation", lambda config: 1e-6)
    monkeypatch.setattr(horizon, "horizons", lambda run: (1.0, 1.0))
    let_probes_pick(monkeypatch)
    for module in ("functional_heads", "functional_heads_trained"):
        monkeypatch.setattr(f"lab.experiments.predictions.{module}.layers_of", layers())
    monkeypatch.setattr("lab.experiments.predictions.functional_heads_one_layer.layers_of", one_layer())
    checks = checks_of(name, lambda options: {})
    assert {check.verdict for check in checks if not check.quantity.startswith("share of")} == {"undecided"}


def test_samples_are_by_seed() -> None:
    scores = {0: 0.2, 3: 1.0, 4: None}
    runs = [Run(Path("x"), {"seed": seed}, {"test": {"accuracy": at}}, "tested") for seed, at in scores.items()]
    found = Runs(tuple(runs)).samples(("test", "accuracy"))
    assert found == pytest.approx({0: 0.2, 3: 1.0, 4: math.nan}, nan_ok=True)
    assert Runs(tuple(runs)).median(("test", "accuracy")) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="4 runs of 3 seeds: samples need one run per seed"):
        Runs((*runs, runs[0])).samples(("test", "accuracy"))


def test_a_correlation_needs_five_cells() -> None:
    cells = [(n, float(n)) for n in range(12)]
    assert correlated("q", cells, 0.5).verdict == "holds"
    assert correlated("q", [(n, -y) for n, y in cells], 0.5).verdict == "fails"
    few = correlated("q", [*cells[:4], (5, math.nan)], 0.5)
    assert (few.verdict, few.reason) == ("undecided", "4 cells of the 5 that a correlation needs")


# The page


def leave_runs(run_dir: Path, name: str, metrics: Metrics, missing: int = 0) -> None:
    """What sweep.py leaves of an experiment; of the last runs only that they were planned."""
    folder, entries = run_dir / name / "small", []
    runs = made_up(name, metrics).runs
    for at, run in enumerate(runs):
        kept = folder / f"run{at}"
        done = at < len(runs) - missing
        entries.append({"folder": kept.name, "kind": "run", "state": "done" if done else "failed"})
        if not done:
            continue
        kept.mkdir(parents=True)
        machine = {"machine": "Linux-6-x86_64-with-glibc2.36", "git": "0123456789abcdef", "python": "3.11"}
        files = {
            "metrics.json": {"params": 1} | run.metrics | {"test": {"loss": 0.1} | run.metrics["test"]},
            "done.json": {"finished": "2026-11-21T10:00:00+0000", "seconds": 10.0},
            "environment.json": {**machine, "versions": {"torch": "2"}, "cpus": 2, "gpus": []},
        }
        for file, content in files.items():
            (kept / file).write_text(json.dumps(content), encoding="utf-8")
        (kept / "config.yaml").write_text(yaml.safe_dump(run.config), encoding="utf-8")
    (folder / "sweep.json").write_text(json.dumps({"command": f"sweep.py {name}.yaml", "runs": entries}), "utf-8")


def test_the_time_of_trials_is_that_of_every_stage_of_each(tmp_path: Path) -> None:
    leave_runs(tmp_path, "placement_probes", probed())
    folder = tmp_path / "placement_probes" / "small"
    # A trial that was dropped at the second rung, and the picked one, which went on from there.
    for name, seconds in {"trial": (1.0, 2.0), "run0": (4.0, 8.0)}.items():
        stages = {str(share): {"seconds": taken} for share, taken in zip((0.25, 0.5), seconds, strict=True)}
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "rungs.json").write_text(json.dumps(stages), encoding="utf-8")
    index = json.loads((folder / "sweep.json").read_text("utf-8"))
    index["runs"].append({"folder": "trial", "kind": "trial", "state": "done", "seconds": 0.0})
    (folder / "sweep.json").write_text(json.dumps(index), encoding="utf-8")
    swept = experiments.SweptRuns("placement_probes", "small", tmp_path)
    assert swept.trial_seconds == 1 + 2 + 4 + 8
    assert swept.seconds == 10 * len(swept.runs) == 10 * 140


def test_the_committed_page_is_what_the_results_say() -> None:
    stored = experiments.read_stored(experiments.ROOT / "docs" / experiments.STORED)
    assert list(stored) == [name for name in PREDICTIONS if name in stored]  # a prediction is committed before its runs
    page = (experiments.ROOT / "docs" / experiments.PAGE).read_text(encoding="utf-8")
    assert page == experiments.page(stored)
    assert all(check["seeds"] for each in stored.values() for check in each["checks"])


def test_the_readme_says_how_many_runs_there_are() -> None:
    n_runs = sum(N_RUNS[name]["small"] for name in N_RUNS)
    readme = (experiments.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"# {n_runs} runs besides the trials of rates" in readme


@pytest.mark.parametrize("document", ["docs/findings.md", "README.md"])
def test_prose_gives_the_verdicts_of_the_records(document: str) -> None:
    stored = experiments.read_stored(experiments.ROOT / "docs" / experiments.STORED)
    text = " ".join((experiments.ROOT / document).read_text(encoding="utf-8").split())
    pattern = r"\[(\w+)\]\((?:docs/)?results\.md#(\w+)\) (holds|fails|is undecided), (none|\d+) of (\d+)"
    said = {
        (name, link, verdict, n.replace("none", "0"), of) for name, link, verdict, n, of in re.findall(pattern, text)
    }
    counts = {name: [check["verdict"] for check in found["checks"]] for name, found in stored.items()}
    true = {
        (
            name,
            name,
            "is undecided" if found["verdict"] == "undecided" else found["verdict"],
            str(counts[name].count("holds")),
            str(len(counts[name])),
        )
        for name, found in stored.items()
    }
    assert said <= true
    assert said == true or document == "README.md"
    assert {name for name, *_ in said} == set(re.findall(r"\[(\w+)\]\((?:docs/)?results", text))


@pytest.mark.parametrize(("document", "part"), [("docs/findings.md", r"\n## "), ("README.md", r"\n\d+\. ")])
def test_an_interval_in_prose_is_one_of_a_record_named_beside_it(document: str, part: str) -> None:
    stored = experiments.read_stored(experiments.ROOT / "docs" / experiments.STORED)
    number = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    seen = 0
    for section in re.split(part, (experiments.ROOT / document).read_text(encoding="utf-8")):
        text = " ".join(section.split())
        names = re.findall(r"results\.md#(\w+)", text)
        assert set(names) <= set(stored)
        checks = [check for name in names for check in stored[name]["checks"] if check["interval"]]
        # A number right before the brackets or at their beginning is the value: 0.48 (0.06 to 0.75).
        pattern = rf"(?:({number}) )?\((?:({number}), |([^()]*[ ,]))?({number}) to ({number})\b"
        for before, first, words, *ends in re.findall(pattern, text):
            seen += 1
            said = [first or ("" if words else before), *ends]
            known = [(check["value"], *check["interval"]) for check in checks]
            alike = [[_is_rounded(*pair) for pair in zip(said, each, strict=True) if pair[0]] for each in known]
            assert any(map(all, alike)), (said, names)
    assert seen > 0


def _is_rounded(text: str, value: float | None) -> bool:
    """Whether a number in prose is this value at the decimals that it is given with."""
    return value is not None and abs(float(text) - value) <= 0.501 * 10 ** -len(text.partition(".")[2])


def test_the_page_says_what_was_changed(tmp_path: Path) -> None:
    leave_runs(tmp_path, "recall", recall())
    experiments.main(["recall", "--run_dir", str(tmp_path), "--out", str(tmp_path)])
    changed = read_experiment(CONFIGS / "recall.yaml", "small").changed
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert f"\nChanged after results had been seen: {changed}\n" in page


def test_the_page_says_what_holds_and_what_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = tmp_path / "runs", tmp_path / "docs"
    leave_runs(runs, "real_text", text(lstm=2.7))
    assert experiments.main(["real_text", "--run_dir", str(runs), "--out", str(out)]) == 1
    leave_runs(runs, "hybrid_ratio", hybrids())
    assert experiments.main(["hybrid_ratio", "--run_dir", str(runs), "--out", str(out)]) == 0
    assert "hybrid_ratio" in capsys.readouterr().out
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "- holds: [hybrid_ratio](#hybrid_ratio)\n- fails: [real_text](#real_text)\n- undecided: none\n" in page
    assert "those of the best of the others | 0.1 | 0.1 to 0.1 | ≤ 0 | **fails** |" in page
    assert "- Verdict: **holds**" in page
    machine = "2 cores, Linux-6-x86_64, Python 3.11, torch 2"
    assert f"Seeds 5, 6, 7, 8, 9; 2026-11-21; {machine}; prediction" in page
    assert "exploratory; runs of commit 012345678: `python sweep.py real_text.yaml`" in page
    assert "python sweep.py configs/experiment/*.yaml --setting small && \\\npython -m lab experiments" in page
    for name in ("real_text", "hybrid_ratio"):
        assert f"](figures/results_{name}.png)" in page
        assert (out / "figures" / f"results_{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (
        "\n<details><summary>Scores, rates and windows (seeds 5, 6, 7, 8, 9; 2026-11-21; commit 012345678), mean"
        in page
    )
    assert "| lstm | **0.1 ± 0** | 5 |" in page
    assert "Run by run: [results/real_text.csv](results/real_text.csv)." in page
    with (out / "results" / "real_text.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["configuration"] == "lstm"]
    assert [int(line["seed"]) for line in lines] == [5, 6, 7, 8, 9]
    assert {float(line["test/bits_per_token"]) for line in lines} == {2.7}
    stored = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert stored["real_text"]["verdict"] == "fails"
    assert stored["hybrid_ratio"]["seeds"] == [5, 6, 7, 8, 9]
    gain, *_, last = stored["real_text"]["checks"]
    assert gain["interval"] == pytest.approx([1.3, 1.3])
    assert last["predicted"] == [None, 0]
    assert last["seeds"] == [5, 6, 7, 8, 9]


def test_tables_are_taken_from_other_runs_than_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    leave_runs(first, "real_text", text(lstm=2.7))
    argv = ["real_text", "--out", str(tmp_path), "--run_dir"]
    assert experiments.main([*argv, str(first), "--tables"]) == 2
    assert "no verdict on real_text is kept" in error_line(capsys, "lab experiments")
    experiments.main([*argv, str(first)])
    page, further = tmp_path / "results.md", "These are further runs of the same setting"
    assert further not in page.read_text(encoding="utf-8")
    before = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["real_text"]
    leave_runs(again, "real_text", text(lstm=2.7), missing=30)
    for file in again.rglob("environment.json"):
        file.write_text(file.read_text(encoding="utf-8").replace("0123456789", "9876543210"), encoding="utf-8")
    assert experiments.main([*argv, str(again), "--tables"]) == 0
    after = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["real_text"]
    assert after.pop("tables") != before.pop("tables")
    assert after == before
    assert further in page.read_text(encoding="utf-8")


def test_tables_are_of_the_setting_of_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_runs(tmp_path, "real_text", text(lstm=2.7))
    argv = ["real_text", "--out", str(tmp_path), "--run_dir", str(tmp_path)]
    experiments.main(argv)
    (tmp_path / "real_text" / "small").rename(tmp_path / "real_text" / "full")
    capsys.readouterr()
    assert experiments.main([*argv, "--setting", "full", "--tables"]) == 2
    assert "the verdict on real_text is of setting small, its runs of full" in error_line(capsys, "lab experiments")


def test_nothing_is_decided_while_runs_are_missing(tmp_path: Path) -> None:
    leave_runs(tmp_path / "runs", "real_text", text(), missing=3)
    argv = ["real_text", "--run_dir", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert experiments.main(argv) == 3
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "- Verdict: **undecided**\n\nUndecided while runs are missing: run32, run33, run34." in page
    assert "| attention: share of the best gain | 1 | – | ≥ 0.5 | **undecided**: 2 seeds of the" in page


def test_nothing_is_decided_while_whole_cells_are_missing(tmp_path: Path) -> None:
    leave_runs(tmp_path / "runs", "gradient_threshold", lambda _: {"test/accuracy": 1.0}, missing=239)
    argv = ["gradient_threshold", "--run_dir", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert experiments.main(argv) == 3
    assert "**undecided**: a cell has no run yet" in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_the_commit_of_a_prediction_is_the_first_that_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, checks = tmp_path / "configs/experiment/own.yaml", tmp_path / "lab/experiments/predictions/own.py"

    def git(*arguments: str) -> str:
        name = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
        done = subprocess.run(["git", *name, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(said: str, changed: str = "", judged: str = "pass", seeds: str = "0-4", full: int = 0) -> str:
        runs = f"settings: {{small: {{grids: [{{mixer: lstm, seed: {seeds}}}]}}, full: {{fixed: {{d_model: {full}}}}}}}"
        for path, text in ((file, f"prediction: {said}\nchanged: {changed}\n{runs}\n"), (checks, judged)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git("add", ".")
        git("commit", "-m", "one")
        return git("rev-parse", "--short=9", "HEAD")

    monkeypatch.setattr(experiments, "ROOT", tmp_path)
    monkeypatch.setattr(experiments, "git", git)
    git("init", "-q")
    commit("it rises")
    falls = commit("it falls")
    commit("it falls", "two more seeds", seeds="0-6")
    wider = commit("it falls", "two more seeds", seeds="0-6", full=64)
    assert experiments.prediction_commit("own", "full") == wider
    assert experiments.prediction_commit("own", "small") == falls
    other = commit("it falls", "other seeds", seeds="2-8", full=64)
    assert experiments.prediction_commit("own", "small") == other
    judged = commit("it falls", "two more seeds", "1 < 2", seeds="2-8", full=64)
    assert experiments.prediction_commit("own", "small") == judged
    again = commit("it rises")
    assert experiments.prediction_commit("own", "small") == again
    checks.write_text("3 < 4", encoding="utf-8")
    assert experiments.prediction_commit("own", "small") is None


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hed_count"], "unknown experiment 'hed_count' (did you mean 'head_count'?)"),
        (["recall", "--setting", "big"], "unknown setting 'big'"),
        (["recall"], "make them with python sweep.py configs/experiment/recall.yaml --setting small"),
    ],
)
def test_a_bad_command_is_one_line(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiments.main([*argv, "--run_dir", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert said in error_line(capsys, "lab experiments")
    assert list(tmp_path.iterdir()) == []


def test_the_verb_of_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    assert application.main(["--help"]) == 0
    assert "experiments  judge" in capsys.readouterr().out
    assert application.main(["experiment"]) == 2
    said = "unknown verb 'experiment' (did you mean 'experiments'?); choose from: experiments, leaderboard\n"
    assert error_line(capsys, "lab") == f"lab: error: {said}"
    assert application.main(["experiments", "hed_count"]) == 2
    assert "unknown experiment 'hed_count'" in error_line(capsys, "lab experiments")
