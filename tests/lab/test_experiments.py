"""Experiments: checks against hand calculations, hashes of predictions, committed records, probes, pages, papers."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from einops import rearrange

from lab import __main__ as application
from lab.config import parse
from lab.examples import Examples
from lab.experiments import command, papers, record, spec
from lab.experiments.bos import BosAttention, measure_sink
from lab.experiments.distilled import distil
from lab.experiments.judge import fitted_limit, judge
from lab.experiments.page import Pages, pages, panels
from lab.experiments.probes import PROBES, measure
from lab.experiments.record import read_records
from lab.experiments.rows import Row, number_of, read_rows
from lab.experiments.spec import Spec, list_specs, read_spec
from lab.plain import read_mapping
from lab.run.record import Run
from lab.sweep.experiment import read_experiment
from lab.sweep.grid import expand
from tests import ROOT, error_line, refused, slow
from tests.cases import draw, randomise
from tests.tolerances import assert_close
from zoo import Backbone, create_mixer
from zoo.errors import UsageError
from zoo.evidence import Check, Prediction
from zoo.evidence.page import check_record
from zoo.mixers.attention import Attention
from zoo.report.numbers import plain

RECORDS = read_records(ROOT / "docs" / "results.json")
SMALL = "settings: {small: {grid: {mixer: [lstm, attention], mixer.n_heads: 4, seed: 0-4}}}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of experiments."""
    monkeypatch.setattr(spec, "CONFIGS", tmp_path)
    (tmp_path / "experiment").mkdir()
    return tmp_path / "experiment"


def write(folder: Path, text: str, name: str = "own") -> Path:
    """Write an experiment's file."""
    file = folder / f"{name}.yaml"
    file.write_text(f"question: Does it?\nprediction: it does\nfixed: {{task: needle}}\n{text}\n", encoding="utf-8")
    return file


def spec_of(folder: Path, check: Mapping[str, Any], **others: Mapping[str, Any]) -> Spec:
    """A spec with one check, and others that it may refer to."""
    write(folder, f"{SMALL}\nchecks: {json.dumps({'check': check} | others)}")
    return read_spec("own", "small")


def rows_of(**cells: Any) -> list[Row]:
    """Rows of five seeds per mixer: an accuracy for all, a list by seed, or a mapping of columns to such values."""
    found: list[Row] = []
    for name, given in cells.items():
        columns = given if isinstance(given, dict) else {"test/accuracy": given}
        for seed in range(5):
            at = {key: value[seed] if isinstance(value, list) else value for key, value in columns.items()}
            found.append({"mixer.name": name, "seed": str(seed)} | {key: str(value) for key, value in at.items()})
    return found


GROWING = [0.1, 0.2, 0.3, 0.4, 0.5]
LATER = [0.6, 0.7, 0.9, 0.8, 0.75]
TWO = {"a": {"test/accuracy": LATER, "chance": 0.1}, "b": {"test/accuracy": GROWING, "chance": 0.1}}
SPREAD = {"a": {"v": [0, 2, 0, 2, 1]}, "b": {"v": [4, 6, 4, 6, 5]}}
TIMES = {"a": {"steps_to_90": [10, 20, 30, 40, ""]}, "b": {"steps_to_90": [50, 60, 70, "", ""]}}
CELLS = {f"m{n}": {"test/accuracy": 0.95 if n > 4 else 0.2, "x": 10.0**n, "n": n} for n in range(10)}


@pytest.mark.parametrize(
    ("check", "cells", "value", "interval"),
    [
        ({"where": {"mixer.name": "a"}}, TWO, 0.75, (0.6, 0.9)),
        ({"diff": [{"mixer.name": "a"}, {"mixer.name": "b"}]}, TWO, 0.5, (0.25, 0.6)),
        ({"ratio": [{"mixer.name": "a"}, {"mixer.name": "b"}]}, TWO, 3.0, (1.5, 6.0)),
        ({"share": [{"metric": "chance"}, {}, 1], "where": {"mixer.name": "b"}}, TWO, 0.2 / 0.9, (0, 0.4 / 0.9)),
        ({"where": {"mixer.name": "a"}, "metric": "accuracy / chance"}, TWO, 7.5, (6, 9)),
        ({"lead": [{"mixer.name": "a"}, {"mixer.name": "b"}]}, TWO, 0.45, (0.25, 0.6)),  # the 8th of 15 means
        ({"sooner": [{"mixer.name": "a"}, {"mixer.name": "b"}]}, TIMES, 0.84, None),  # 20 of 25 pairs, and 2 ties
        ({"take": "min", "over": "mixer.name"}, TWO, 0.3, (0.1, 0.5)),
        ({"take": "median"}, TWO, 0.55, None),
        ({"ratio": [{"take": "max", "mixer.name": each} for each in "ab"]}, TWO, 1.8, None),
        ({"take": "max", "over": "mixer.name", "metric": "v"}, SPREAD, 5, (4, 6)),  # rows without an accuracy
        ({"take": "max", "over": "mixer.name", "learned": 0.9, "metric": "n"}, CELLS, 9, (9, 9)),
        ({"solved": 0.5}, TWO, 0.6, (0.2624, 0.8784)),  # six of ten, Clopper-Pearson
        ({"solved": 0.1, "metric": "loss"}, {"a": {"test/loss": GROWING}}, 0.2, (0.0051, 0.7164)),  # less is better
        ({"spearman": {"x": "x", "y": "n", "over": "mixer.name"}}, CELLS, 1.0, None),
        ({"superiority": {"x": "x", "learned": 0.9, "over": "mixer.name"}}, CELLS, 1.0, None),
        ({"variance_ratio": {"over": "mixer.name"}, "metric": "v"}, SPREAD, 7.8, None),  # F = 40, (40 - 1) / 5
        ({"where": {"mixer.name": ["a", "c"]}}, TWO, 0.75, (0.6, 0.9)),
        ({"where": {"mixer.name": {"not": ["b"]}}}, TWO, 0.75, (0.6, 0.9)),
        ({"where": {"mixer.name": {"not": "bb"}}}, {"a": TWO["a"], "bb": TWO["b"]}, 0.75, (0.6, 0.9)),
        ({"where": {"x": "> 1e8"}, "metric": "n"}, CELLS, 9, (9, 9)),
        ({"where": {"x": "least"}, "metric": "n"}, CELLS, 0, (0, 0)),
        ({"where": {"x": "most"}, "metric": "n"}, {"none": {"x": "", "n": 0}} | CELLS, 9, (9, 9)),
    ],
)
def test_the_value_and_interval_of_a_check_equal_those_by_hand(
    check: dict[str, Any], cells: dict[str, Any], value: float, interval: tuple[float, float] | None, folder: Path
) -> None:
    (found,) = judge(spec_of(folder, {"at_least": 0} | check), rows_of(**cells)).checks
    assert found.value == pytest.approx(value)
    if interval is not None:
        assert found.interval == pytest.approx(interval, abs=1e-4)


@pytest.mark.parametrize(
    ("region", "verdicts"),
    [  # verdicts for accuracies from 0.6 to 0.9, from 0.1 to 0.5, and with one seed too few
        ({"at_least": 0.6}, ("holds", "fails", "undecided")),
        ({"at_least": 0.7}, ("undecided", "fails", "undecided")),
        ({"at_most": 0.5}, ("fails", "holds", "undecided")),
        ({"near": [0.75, 0.3]}, ("holds", "fails", "undecided")),
        ({"within": [0.1, 0.5]}, ("fails", "holds", "undecided")),
        ({"at_most": {"column": "chance", "times": 5}}, ("fails", "holds", "undecided")),
        ({"near": {"column": "chance", "relative": 0.1}}, ("fails", "undecided", "undecided")),
    ],
)
def test_a_region_gives_holds_fails_or_undecided(
    region: dict[str, Any], verdicts: tuple[str, ...], folder: Path
) -> None:
    found = spec_of(folder, region | {"each": {"mixer.name": ["a", "b", "c", "nowhere"]}})
    rows = rows_of(**TWO, c=TWO["a"])[:-1]
    assert tuple(check.verdict for check in judge(found, rows).checks) == verdicts
    assert [check.quantity for check in judge(found, rows).checks] == ["check: a", "check: b", "check: c"]


@pytest.mark.parametrize(
    ("check", "enough"),
    [  # whether five and eight seeds are enough
        ({"at_least": 0.5, "solved": 0.9, "if_true": 0.99}, (False, True)),
        ({"at_least": 0.5, "sooner": [{}, {}], "if_true": 0.95}, (False, True)),
        ({"at_least": 0, "lead": [{}, {}], "if_true": {"value": 0.3, "sd": 0.2}}, (False, True)),
        ({"at_least": 0.9, "if_true": {"value": 0.97, "sd": 0.02}}, (True, True)),
        ({"at_least": 0.9}, (False, False)),
        ({"at_least": {"column": "chance", "times": 2}}, (True, True)),
    ],
)
def test_a_prediction_without_statistical_power_is_not_registered(
    check: dict[str, Any], enough: tuple[bool, bool], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n_seeds, has_power in zip((5, 8), enough, strict=True):
        write(folder, f"{SMALL.replace('0-4', f'0-{n_seeds - 1}')}\nchecks: {json.dumps({'lead': check})}")
        status = application.main(["experiments", "own", "--predict", "--out", str(folder)])
        (folder / "results.json").unlink(missing_ok=True)
        assert status == (0 if has_power else 2), capsys.readouterr()


@pytest.mark.parametrize(
    ("kind", "easy", "hard", "verdict"),
    [
        ("easier", 1.0, 0.1, "holds"),
        ("easier", 0.5, 0.1, "undecided"),  # the control fails
        ("easier", 0.5, 0.9, "fails"),  # a learned task needs no control
        ("given", 0.5, 0.9, "undecided"),
        ("given", 1.0, 0.9, "fails"),
    ],
)
def test_a_check_is_undecided_without_its_control_given_inline_or_by_name(
    kind: str, easy: float, hard: float, verdict: str, folder: Path
) -> None:
    rows = rows_of(hard=hard, easy=easy)
    negative = {"at_most": 0.3, "where": {"mixer.name": "hard"}}
    control = {"at_least": 0.9, "where": {"mixer.name": "easy"}}
    for other in ({kind: control}, {kind: [control]}):
        assert judge(spec_of(folder, negative | other), rows).checks[0].verdict == verdict
    assert judge(spec_of(folder, negative | {kind: "other"}, other=control), rows).checks[0].verdict == verdict
    not_run = {"at_least": 0.9, "each": {"mixer.name": ["x", "y"]}}
    without_control = judge(spec_of(folder, negative | {kind: "other"}, other=not_run), rows).checks[0].verdict
    assert without_control == ("fails" if kind == "easier" and hard > 0.3 else "undecided")


@pytest.mark.parametrize(
    ("usual", "later", "seeds", "verdict"),
    [
        (0.1, 0.1, 5, "holds"),
        (0.1, 0.9, 5, "fails"),
        (0.1, 0.1, 1, "holds"),
        (0.1, 0.9, 1, "undecided"),  # one seed of longer training can only confirm
        (0.9, 0.1, 1, "fails"),
        (0.1, 0.1, 0, "undecided"),  # there are no longer runs
    ],
)
def test_a_negative_needs_longer_training(usual: float, later: float, seeds: int, verdict: str, folder: Path) -> None:
    first = rows_of(a={"test/accuracy": usual, "trainer.max_steps": 100})
    longer = rows_of(a={"test/accuracy": later, "trainer.max_steps": 400})
    check = {"at_most": 0.3, "where": {"mixer.name": "a"}, "longer": 4}
    (found,) = judge(spec_of(folder, check), [*first, *longer[:seeds]]).checks
    assert found.verdict == verdict


@pytest.mark.parametrize("quantity", [{"solved": 0.9, "at_most": 0.6}, {"take": "max", "at_most": 0.3}])
@pytest.mark.parametrize(
    ("usual", "later", "verdict"),
    [(0.1, 0.1, "holds"), (0.1, 0.95, "undecided"), (0.95, 0.1, "undecided"), (0.1, None, "undecided")],
)
def test_a_negative_that_is_not_by_seed_needs_longer_training_too(
    quantity: dict[str, Any], usual: float, later: float | None, verdict: str, folder: Path
) -> None:
    rows = rows_of(a={"test/accuracy": usual, "trainer.max_steps": 100})
    rows += rows_of(a={"test/accuracy": later, "trainer.max_steps": 400}) if later is not None else []
    (found,) = judge(spec_of(folder, quantity | {"longer": 4}), rows).checks
    assert found.verdict == (verdict if usual < 0.9 or "solved" in quantity else "fails")


def test_a_recorded_check_keeps_the_limit_of_its_cell(folder: Path) -> None:
    """The record has the numbers of a probe that was not kept; the limit is a column of the runs."""
    check = {"at_most": {"column": "k"}, "metric": "heads needed", "each": {"mixer.name": ["a", "b"]}}
    rows = rows_of(a={"k": 1, "heads needed": 3}, b={"k": 4, "heads needed": 3})
    known = judge(spec_of(folder, check), rows).checks
    assert [each.verdict for each in known] == ["fails", "holds"]
    recorded = {each.quantity: check_record(each) for each in known}
    without = [{key: text for key, text in row.items() if key != "heads needed"} for row in rows]
    for kept in (without, []):
        assert judge(spec_of(folder, check), kept, recorded).checks == known


def test_a_share_is_of_the_seeds_of_its_own_runs(folder: Path) -> None:
    """The page shows 2 of 3 seeds, also if other runs of the experiment have more seeds."""
    check = {"at_most": 1, "solved": 0.5, "where": {"mixer.name": "a"}}
    (found,) = judge(spec_of(folder, check), rows_of(a=[0.1, 0.2, 0.9, 0.8, 0.1], b=0.1)[2:]).checks
    assert (found.seeds, Pages({}).jinja.filters["seeds"](found)) == ((2, 3, 4), "2 of 3 seeds")
    (pooled,) = judge(spec_of(folder, check | {"where": {}}), rows_of(a=1.0, b=0.1)).checks
    assert pooled.seeds == ()


def test_classify_fits_a_limit_on_some_cells_and_tests_it_on_the_others(folder: Path) -> None:
    def classify(fit: list[str]) -> Check:
        given = {"x": "x", "learned": 0.9, "over": "mixer.name", "fit": [{"mixer.name": fit}]}
        return judge(spec_of(folder, {"at_least": 0.6, "classify": given}), rows_of(**CELLS)).checks[0]

    assert classify(["m1", "m3", "m6", "m8"]).value == pytest.approx(1)  # the limit is between m3 and m6
    unlearned = classify(["m0", "m1"])  # the limit is just above these
    assert unlearned.value == unlearned.low == pytest.approx(5 / 8)  # the share of the more frequent outcome
    assert fitted_limit([(1e-3, False), (1e-1, True)]) == pytest.approx(1e-2)
    assert 0 <= fitted_limit([(0.0, False), (1e-3, True), (0.0, False)]) < 1e-3  # with vanished gradients


def test_cells_without_the_number_are_ignored_by_superiority_and_classify(folder: Path) -> None:
    cells = CELLS | {f"none{n}": {"test/accuracy": n, "x": "", "n": 0} for n in range(2)}
    given = {"x": "x", "learned": 0.9, "over": "mixer.name"}
    classify = given | {"fit": [{"mixer.name": ["m3", "m6", "none0"]}]}
    for check in ({"superiority": given}, {"classify": classify}):
        known, found = (judge(spec_of(folder, {"at_least": 0.5} | check), rows_of(**each)) for each in (CELLS, cells))
        assert known == found


@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize(
    "check",
    [
        {"lead": [{"mixer.name": "a"}, {"mixer.name": "b"}]},
        {"take": "min", "over": "mixer.name"},
        {"take": "median"},
        {"solved": 0.0},
        {"spearman": {"x": "chance", "y": "accuracy", "over": "mixer.name"}},  # needs five cells
    ],
)
def test_a_missing_number_of_any_seed_leaves_a_check_undecided(check: dict[str, Any], lost: int, folder: Path) -> None:
    rows = rows_of(**TWO, **{f"c{n}": {"test/accuracy": n / 8, "chance": 0.1 * n} for n in range(3)})
    rows[lost]["test/accuracy"] = ""
    (found,) = judge(spec_of(folder, {"at_least": -1} | check), rows).checks
    assert (found.verdict, math.isnan(found.value) or found.reason != "") == ("undecided", True)


@pytest.mark.parametrize(("pairs", "reason"), [(3, "3 seeds, but an interval needs 5"), (5, "no number for seed 4")])
def test_a_lead_that_cannot_be_measured_has_a_reason(pairs: int, reason: str, folder: Path) -> None:
    check = {"at_least": 0, "lead": [{"mixer.name": "a"}, {"mixer.name": "b"}]}
    rows = rows_of(a=LATER, b=[*GROWING[:4], ""])
    (found,) = judge(spec_of(folder, check), rows[: 5 + pairs]).checks
    assert (found.verdict, found.reason, found.interval_text) == ("undecided", reason, "–")


def test_a_ratio_to_zero_and_groups_of_unequal_size_are_undecided(folder: Path) -> None:
    check = {"at_least": 0, "ratio": [{"mixer.name": "a"}, {"mixer.name": "b"}]}
    zero = rows_of(a=0.5, b=[0.1, 0.2, 0.0, 0.3, 0.4])
    assert judge(spec_of(folder, check), zero).checks[0].reason == "no number for seed 2"
    check = {"at_least": 0, "variance_ratio": {"over": "mixer.name"}, "metric": "v"}
    assert judge(spec_of(folder, check), rows_of(**SPREAD)[1:]).checks[0].verdict == "undecided"


def test_a_correlation_needs_five_cells_and_a_run_that_never_learns_has_no_speed(folder: Path) -> None:
    spearman = {"at_least": 0.1, "spearman": {"x": "x", "y": "speed", "over": "mixer.name"}}
    cells = {f"m{n}": {"x": n, "steps_to_90": "" if n < 2 else 1000 - n, "trainer.max_steps": 1000} for n in range(9)}
    found = spec_of(folder, spearman)
    assert judge(found, rows_of(**cells)).checks[0].verdict == "holds"
    assert judge(found, rows_of(**cells)[:20]).checks[0].verdict == "undecided"
    first, *_, last = rows_of(**cells)
    assert [number_of(first, each) for each in ("speed", "steps")] == [0, 1000]
    assert number_of(last, "speed") == pytest.approx(1 / 992)


def test_a_condition_that_is_another_mapping_is_refused(folder: Path) -> None:
    with refused("check: a condition is .* got {'nott': 'b'}"):
        judge(spec_of(folder, {"at_least": 0, "where": {"mixer.name": {"nott": "b"}}}), rows_of(**TWO))


def test_scores_at_other_lengths_are_metrics(folder: Path) -> None:
    cells = {"a": {"test/accuracy": 1, "test/at_length/32/accuracy": 0.5, "task.seq_len": 8}}
    for metric in ("accuracy@32", "accuracy@4x"):
        assert judge(spec_of(folder, {"at_least": 0.9, "metric": metric}), rows_of(**cells)).checks[0].value == 0.5
    found = replace(spec_of(folder, {"at_least": 0}), plots=[{"x": "length", "y": "accuracy", "line": "mixer.name"}])
    (curve,) = panels(found, rows_of(**cells))[0].curves
    assert (curve.label, list(curve.x), list(curve.y)) == ("a", [8, 32], [1, 0.5])


def test_a_plot_over_categories_leaves_out_runs_without_the_number(folder: Path) -> None:
    """NaN has no order, so the mark of the median and the order of the names would depend on the order of the seeds."""
    found = replace(spec_of(folder, {"at_least": 0}), plots=[{"x": "mixer.name", "y": "accuracy"}])
    (panel,) = panels(found, rows_of(none="", a=["", 0.9, 0.8, "", 0.7], b=0.5))
    assert {curve.label: list(curve.y) for curve in panel.curves} == {"b": [0.5] * 5, "a": [0.9, 0.8, 0.7], "none": []}
    assert panel.x_names == ("b", "a", "none")


# Hashes of predictions


BASE = f"""\
{SMALL}
probes: [gradient]
checks: {{learned: {{at_least: 0.9}}}}"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("seed: 0-4", "seed: 0-9", True),
        ("settings:", "changed: five more seeds\nsettings:", True),
        ("checks:", "found: it did\nchecks:", True),
        ("settings: {", "settings: {full: {grid: {mixer: lstm}}, ", True),
        ("at_least: 0.9", "at_least: 0.8", False),
        ("lstm, ", "", False),
        ("task: needle", "task: needle, d_model: 16", False),
    ],
)
def test_the_hash_changes_only_with_the_prediction(before: str, after: str, same: bool, folder: Path) -> None:
    file = write(folder, BASE)
    first, text = read_spec("own", "small").hash, file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")
    assert (read_spec("own", "small").hash == first) is same


def test_the_hash_changes_with_the_version_of_a_probe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, BASE)
    first = read_spec("own", "small").hash
    monkeypatch.setitem(PROBES, "gradient", replace(PROBES["gradient"], version=2))
    assert read_spec("own", "small").hash != first


# Committed records


@pytest.mark.parametrize("name", list_specs())
def test_a_record_is_reproduced_from_its_runs(name: str) -> None:
    found, stored = read_spec(name, "small"), RECORDS[name]
    assert found.hash == stored["predicted"]["hash"]
    if stored["verdict"] == "open":  # predicted but not run yet
        return
    file = ROOT / "docs" / "results" / f"{name}.csv"
    rows = read_rows(file.read_text(encoding="utf-8"), found.experiment.fixed) if file.is_file() else []
    recorded = {check["quantity"]: check for check in stored["checks"]}
    evidence = judge(found, rows, recorded)
    for check, before in zip(map(check_record, evidence.checks), stored["checks"], strict=True):
        for key in ("value", "interval", "predicted"):
            now, then = (np.array(each[key], float) for each in (check, before))  # None is NaN
            np.testing.assert_allclose(now, then, rtol=1e-5, atol=1e-9, err_msg=check["quantity"])
        assert (check["verdict"], check["quantity"]) == (before["verdict"], before["quantity"])
    assert Prediction(name, "", "", "").judge(evidence) == stored["verdict"]


def test_every_page_renders_and_a_placeholder_without_record_is_refused() -> None:
    assert set(pages(RECORDS)) == {"README.md", "docs/choosing.md", "docs/findings.md", "docs/results.md"}
    for kept in (read_records(ROOT / "docs" / "papers.json"), {}):
        assert all(f"## {name}" in papers.papers_page(kept) for name in list_specs(papers.KIND))
    with pytest.raises(UsageError, match="planted_heads"):
        pages({name: kept for name, kept in RECORDS.items() if name != "planted_heads"})
    with pytest.raises(UsageError, match="k=4, H=9"):
        Pages(RECORDS).check("planted_heads", "k=4, H=9")


# Files


def run_of(config: dict[str, Any]) -> Run:
    return Run(Path("x"), config, {}, "tested")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        slow(name, setting, unless=(name, setting) == ("tracking", "small"))
        for name in (*list_specs(), "mad")
        for setting in ("small", "full")
    ],
)
def test_every_setting_has_valid_runs_and_checks_that_select_some(
    name: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "build/stdlib/text.txt"  # the file that a comment in text_recall.yaml tells users to make
    text.parent.mkdir(parents=True)
    text.write_text("No text is read here. " * 250_000)
    monkeypatch.chdir(tmp_path)
    experiment = read_experiment(spec.CONFIGS / "experiment" / f"{name}.yaml", setting)
    if setting == "full":  # the slow search for matching widths is tested with the other setting
        experiment = replace(experiment, match={})
    found = expand(experiment, Path("runs"))
    assert found.n_runs
    for configuration, _ in found:
        sizes = {"params": configuration.params, "state": configuration.state_bytes}
        assert all(abs(sizes[size] / wanted - 1) < 0.05 for size, wanted in experiment.match.items())
    if name == "mad":  # a protocol without checks
        return
    metrics = ["accuracy", "relative_squared_error", "bits_per_token", "by_segment/seq_len=96,n_copied=48/accuracy"]
    metrics += [f"at_length/{n}/accuracy" for n in (16, 32, 64, 128, 256)]
    metrics += [f"by_repeated/{n}/accuracy" for n in (1, 16)]
    measured = dict.fromkeys([*(f"test/{metric}" for metric in metrics), "chance", "steps_to_90"], "0.1")
    measured |= {column: "1" for probe in PROBES.values() for column in probe.columns}
    rows = [
        measured
        | {"state_bytes": str(configuration.state_bytes), "seed": str(seed)}
        | {key: plain(value) for key, value in run_of(configuration.command.config).options.items()}
        for configuration, seeds in found
        for seed in seeds
    ]
    columns = {key: "" for row in rows for key in row}
    assert judge(read_spec(name, setting), [columns | row for row in rows]).checks


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("checks: {a: {at_leest: 1}}", "at_least"),
        ("checks: {a: {at_least: 1, at_most: 2}}", "at_most"),
        ("checks: {a: {at_least: 1, diff: [{}, {}], ratio: [{}, {}]}}", "ratio"),
        ("checks: {a: {at_least: '0.9'}}", "at_least must be a number"),
        ("checks: {a: {near: {column: chance}}}", "near must be [value, relative error]"),
        ("checks: {a: {within: 0.5}}", "within must be [low, high]"),
        ("checks: {a: {at_least: 0, lead: [{}]}}", "lead must be a list of 2 operands"),
        ("checks: {a: {at_least: 0, spearman: {x: lr}}}", "spearman must be a mapping with x, over, perhaps y"),
        ("checks: {a: {at_least: 1, given: b}}", "'b'"),
        ("checks: {a: {at_least: 1, easier: {at_leest: 1}}}", "at_least"),
        ("checks: {a: {at_least: 1, easier: {at_least: 1, each: {seed: 0-4}}}}", "`each`"),
        ("checks: {a: {at_least: 1, given: b}, b: {at_least: 1, easier: {at_least: 1, given: a}}}", "a > b > a"),
        ("checks: {a: {at_least: 1, name: 'k={task.k}', each: {mixer.name: lstm}}}", "{task.k}"),
        ("checks: {a: {at_least: 1}}\nprobes: [gradeint]", "gradient"),
        ("checks: {a: {at_least: 1}}\nplot: {z: loss}", "'z'"),
    ],
)
def test_a_bad_file_is_a_one_line_error(text: str, key: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, f"{SMALL}\n{text}")
    assert application.main(["experiments", "own", "--out", str(folder / "out")]) == 2
    assert key in error_line(capsys, "lab experiments")


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["planted_head"], "planted_heads"),
        (["tracking", "--setting", "big"], "big"),
        (["tracking"], "sweep.py configs/experiment/tracking.yaml --setting small"),
        (["mad"], "planted_heads"),
        ([], "no runs of any experiment"),
    ],
)
def test_wrong_arguments_are_one_line_errors(
    argv: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert application.main(["experiments", *argv, "--run_dir", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert key in error_line(capsys, "lab experiments")
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_commands_and_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert application.main(["--help"]) == 0
    assert "experiments" in capsys.readouterr().out
    assert application.main(["experiment"]) == 2
    assert "experiments" in error_line(capsys, "lab")
    with pytest.raises(SystemExit):
        application.main(["experiments", "--help"])
    shown = capsys.readouterr().out
    assert [name for name in list_specs() if name not in shown] == []


# Probes


def test_the_probe_gradient_distinguishes_a_highway_from_a_short_memory() -> None:
    def probed(mixer: str, distance: int) -> float:
        argv = f"--mixer {mixer} --task needle --task.distance {distance} --d_model 16"
        (columns,) = measure(["gradient"], [run_of(parse(argv.split()).config)])
        return columns["gradient"]

    assert probed("attention", 64) > 1e-3
    assert 0 < probed("lstm", 64) < 1e-5


def test_probes_add_columns_to_each_run() -> None:
    heads = (parse(["--mixer=factorized", f"--mixer.n_heads={h}", "--task=ssm_teacher"]).config for h in (1, 8))
    first, last = measure(["head_count_bound"], [*map(run_of, heads)])
    assert first["bound"] > 0.1
    assert last["bound"] == pytest.approx(0, abs=1e-12)
    layer = parse(["--mixer=attention", "--task=mqar", "--task.seq_len=16", "--task.n_pairs=2"]).config
    (columns,) = measure(["layer_gradient"], [run_of(layer)])
    assert columns["gradient"] > 1e-3


@torch.no_grad()
def test_a_layer_is_distilled_into_heads(generator: torch.Generator) -> None:
    """On white inputs the best single head has the error of the bound, fitting gains nothing, two heads are exact."""
    x, others = (draw(200, 16, 6, generator=generator) for _ in range(2))
    mixer = randomise(create_mixer("factorized", 6, n_heads=2, max_seq_len=16), generator).double()
    bound, best, fitted, *enough = distil(mixer, x, others)[:6]
    assert bound > 0.05
    assert best == pytest.approx(bound, rel=0.1)
    assert fitted == pytest.approx(bound, rel=0.1)
    assert max(enough) < 1e-10
    with refused("GRU is not linear and time-invariant"):
        distil(create_mixer("gru", 6).double(), x, others)


@torch.no_grad()
def test_the_effect_of_a_bos_token_is_measured(generator: torch.Generator) -> None:
    """Against attention over the sequence with the token in front. With constant weights the token is a bias."""
    model = Backbone(
        {"name": "lab.experiments.bos:BosAttention", "n_heads": 2}, 6, 1, n_outputs=5, d_input=6, backbone="bare"
    )
    mixer = next(m for m in randomise(model, generator).double().modules() if isinstance(m, BosAttention))
    attention = Attention(6, n_heads=2).double()
    attention.load_state_dict(mixer.state_dict(), strict=False)
    x = draw(3, 7, 6, generator=generator)
    with_token = torch.cat((mixer.bos.expand(3, 1, 6), x), dim=1)
    assert_close(mixer(x), attention(with_token)[:, 1:])
    q, k, v = (rearrange(t, "b s (h d) -> b h s d", h=2) for t in mixer.qkv_proj(with_token).chunk(3, dim=2))
    weights = (q @ k.mT / 3**0.5).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf).softmax(3)
    others = mixer.out_proj(rearrange(weights[..., 1:] @ v[:, :, 1:], "b h s d -> b s (h d)"))[:, 1:]
    mixer.intervene = lambda weight, term: -term
    assert_close(mixer(x), others)

    found = Examples("", "cross_entropy", x, torch.tensor([[0, -100, 1, 2, 3, 4, -100]] * 3), None)
    _, held, _ = measure_sink(model, found)
    assert abs(held) > 1e-4
    mixer.qkv_proj.weight[:6] = 0
    weight, held, left_out = measure_sink(model, found)
    assert weight == pytest.approx(sum(1 / n for n in (2, 4, 5, 6, 7)) / 5)
    assert held == pytest.approx(0, abs=1e-12)
    assert abs(left_out) > 1e-4


# From a sweep to the page


def leave_runs(run_dir: Path, metrics: Callable[[str], float], missing: int = 0) -> None:
    """Write the folder of a sweep over two mixers; the last `missing` runs are only planned."""
    folder, entries = run_dir / "own" / "small", []
    for at, (mixer, seed) in enumerate((mixer, seed) for mixer in ("lstm", "attention") for seed in range(6)):
        kept = folder / f"run{at}"
        done = at < 12 - missing
        entries.append({"folder": kept.name, "kind": "run", "state": "done" if done else "failed"})
        if not done:
            continue
        kept.mkdir(parents=True, exist_ok=True)
        machine = {"machine": "Linux-6-x86_64-with-glibc2.36", "git": "0123456789abcdef", "python": "3.11"}
        files = {
            "metrics.json": {"params": 1, "test": {"loss": 0.1, "accuracy": metrics(mixer)}},
            "done.json": {"finished": "2026-11-21T10:00:00+0000", "seconds": 10.0},
            "environment.json": {**machine, "versions": {"torch": "2"}, "cpus": 2, "gpus": []},
            "rungs.json": [{"stop_at": 0.25, "seconds": 1.0}, {"stop_at": 0.5, "seconds": 2.0}],
        }
        for file, content in files.items():
            (kept / file).write_text(json.dumps(content), encoding="utf-8")
        heads = {"n_heads": 4} if mixer == "attention" else {}
        config = {"seed": seed, "task": {"name": "needle"}, "mixer": {"name": mixer, **heads}}
        config["trainer"] = {"max_steps": 9}
        (kept / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps({"command": "sweep.py own.yaml", "runs": entries}), "utf-8")


OWN = f"""\
{SMALL}
checks:
  attention: {{at_least: 0.9, if_true: {{value: 1, sd: 0.01}}, where: {{mixer.name: attention}}}}
  lead:
    at_least: 0
    if_true: {{value: 0.5, sd: 0.1}}
    diff: [{{mixer.name: attention, mixer.n_heads: 4}}, {{mixer.name: lstm}}]
plot: {{x: mixer.name, y: accuracy}}
found: "Attention has {{{{ check('own', 'attention').value }}}}."
"""


def test_a_sweep_is_judged_and_later_judged_again_from_its_csv(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, OWN)
    argv = ["own", "--run_dir", str(folder / "runs"), "--out", str(folder / "out")]
    assert command.main([*argv, "--predict"]) == 0
    registered = read_records(folder / "out" / "results.json")["own"]
    assert (registered["verdict"], registered["predicted"]["commit"]) == ("open", None)  # outside a repository
    for missing in (12, 7, 1):  # no runs; only one mixer; one run missing, although five seeds would be enough
        leave_runs(folder / "runs", {"lstm": 0.5, "attention": 1.0}.get, missing)  # type: ignore[arg-type]
        assert command.main(argv) == 3
    assert read_records(folder / "out" / "results.json")["own"]["missing"] == ["run11"]
    leave_runs(folder / "runs", {"lstm": 0.5, "attention": 1.0}.get)  # type: ignore[arg-type]
    assert command.main(argv) == 0
    first = read_records(folder / "out" / "results.json")["own"]
    assert [check["value"] for check in first["checks"]] == [1.0, 0.5]
    assert (first["seeds"], first["commits"]) == ([0, 1, 2, 3, 4, 5], ["012345678"])
    assert (first["seconds"], first["trial_seconds"], first["changed_after"]) == (120, 24, False)
    assert (folder / "out" / "figures" / "results_own.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "results.md").read_text(encoding="utf-8")
    assert all(part in page for part in ("Does it?", "Attention has 1.0.", "sweep.py own.yaml", "Dropped"))
    with (folder / "out" / "results" / "own.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 12
    capsys.readouterr()
    (folder / "runs").rename(folder / "gone")
    assert command.main(argv) == 0  # from the CSV
    assert read_records(folder / "out" / "results.json")["own"] == first
    write(folder, OWN.replace("at_least: 0.9", "at_most: 0.9"))
    assert command.main(argv) == 1
    assert read_records(folder / "out" / "results.json")["own"]["changed_after"]


def test_a_record_is_kept_until_a_run_of_a_new_sweep_is_done(folder: Path) -> None:
    write(folder, OWN)
    argv = ["own", "--run_dir", str(folder / "runs"), "--out", str(folder / "out")]
    records = []
    for missing in (0, 12):
        leave_runs(folder / "runs", {"lstm": 0.5, "attention": 1.0}.get, missing)  # type: ignore[arg-type]
        assert command.main(argv) == 0
        records.append(read_records(folder / "out" / "results.json")["own"])
    assert records[0] == records[1]


def test_a_configuration_whose_trials_all_failed_is_missing(folder: Path) -> None:
    write(folder, OWN)
    leave_runs(folder / "runs", {"lstm": 0.5, "attention": 1.0}.get)  # type: ignore[arg-type]
    index = folder / "runs" / "own" / "small" / "sweep.json"
    index.write_text(json.dumps(json.loads(index.read_text("utf-8")) | {"unpicked": ["gru needle"]}), "utf-8")
    assert command.main(["own", "--run_dir", str(folder / "runs"), "--out", str(folder / "out")]) == 3
    found = read_records(folder / "out" / "results.json")["own"]
    assert (found["verdict"], found["missing"]) == ("undecided", ["gru needle (no trial was picked)"])


def test_without_names_all_experiments_with_runs_are_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("another", "own", "yet_another"):
        write(folder, OWN, name)
    leave_runs(folder / "runs", {"lstm": 0.5, "attention": 1.0}.get)  # type: ignore[arg-type]
    assert command.main(["--run_dir", str(folder / "runs"), "--out", str(folder / "out")]) == 3
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("another", "yet_another"))
    assert read_records(folder / "out" / "results.json").keys() == {"own"}


def test_a_prediction_can_be_registered_again_until_its_file_is_committed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, OWN)
    argv = ["own", "--predict", "--out", str(folder / "out")]
    assert command.main(argv) == 0
    assert "not committed" in capsys.readouterr().err
    for head in ("first", "later"):
        answers = {"status": "", "ls-files": "own.yaml", "rev-parse": head}
        monkeypatch.setattr(record, "git", lambda verb, *_, answers=answers: answers[verb])
        assert command.main(argv) == 0
        assert read_records(folder / "out" / "results.json")["own"]["predicted"]["commit"] == "first"


def test_a_prediction_must_precede_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "git", lambda *arguments: "" if arguments[-1] == "later" else None)
    assert record.is_before("one", ["later", "later"])
    assert not record.is_before("one", ["earlier", "later"])
    assert not record.is_before(None, ["later"])


# Papers

PAPER = """
question: Which learns?
source: someone
fixed: {task: parity, task.seq_len: 4, task.fresh: true, task.n_train: 8, task.n_val: 8, task.n_test: 8, d_model: 8,
        task.test_lengths: [8, 16], batch_size: 8, figures_every: 0, trainer: {max_steps: 2, accelerator: cpu}}
setting: small
settings: {small: {grid: {mixer: [lstm, gru], seed: 0}}}
published:
  - title: Table 1
    n_test: 100
    cells: {a: {value: 0.3, mixer.name: a}, low: {value: 0.62, mixer.name: a}, none: {value: 1.0}}
  - title: Scaled
    metric: [accuracy@8, accuracy@16]
    chance: 0.5
    where: {seed: "< 5"}
    cells: {a: {value: 0.5, spread: 0.2, mixer.name: a}, b: {value: 0.1, spread: 0.0, mixer.name: b},
            gone: {value: 0, mixer.name: c}}
"""


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configurations with one paper."""
    for module in (spec, papers):
        monkeypatch.setattr(module, "CONFIGS", tmp_path)
    (tmp_path / papers.KIND).mkdir()
    (tmp_path / papers.KIND / "own.yaml").write_text(PAPER, encoding="utf-8")
    return tmp_path


def test_a_published_score_is_compared_with_ours(paper: Path) -> None:
    at = {f"test/at_length/{n}/accuracy": [x + n / 1000 for x in LATER] for n in (8, 16)}
    rows = rows_of(a={"test/accuracy": GROWING, **at}, b={"test/accuracy": GROWING, **at})
    found = read_spec("own", kind=papers.KIND)
    checks = {cell.name: cell.compare(rows) for cell in papers.published_cells(found)}
    assert checks["Scaled: a"].value == pytest.approx(2 * (0.75 + 0.012) - 1)
    words = [line[-1] for lines in papers.tables(found, checks).values() for line in lines]
    # The interval of 0.62 on 100 answers starts at 0.52, above the interval 0.1 to 0.5 of ours.
    assert words == ["within", "**lower**", "no such mixer here", "within", "**higher**", "not run"]


def test_a_paper_keeps_its_record_until_a_run_has_finished(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = paper / "out" / papers.STORED
    kept.parent.mkdir()
    kept.write_text(before := '{"own": {"checks": []}}')
    monkeypatch.setattr(papers, "sweep", lambda argv: 130)  # Ctrl-C before the first run
    monkeypatch.setattr(papers, "read_listed", lambda *_: record.Listed("", {}, (), fresh=True))
    assert papers.main(["own", "--out", str(kept.parent)]) == 130
    assert kept.read_text() == before


@pytest.mark.parametrize("metric", ["accuracy@4x", "accuracy@0.5x", "speed", "steps", "acuracy"])
def test_a_metric_that_no_run_has_is_refused(metric: str) -> None:
    with refused("unknown column"):
        number_of({"test/accuracy": "0.5", "seed": "0"}, metric)


@pytest.mark.parametrize(("argv", "key"), [(["owm"], "own"), (["own", "--setting", "large"], "small")])
def test_an_unknown_paper_or_setting_is_a_one_line_error(
    argv: list[str], key: str, paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert application.main(["reproduce", *argv, "--out", str(paper / "out")]) == 2
    assert key in error_line(capsys, "lab reproduce")
    assert not (paper / "out").exists()


@pytest.mark.slow
def test_a_paper_is_reproduced_and_the_same_command_reuses_its_runs(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["own", "--run_dir", str(paper / "runs"), "--slots", "1", "--out", str(paper / "out")]
    assert papers.main(argv) == papers.main(argv) == 0
    assert "all 2 are done" in capsys.readouterr().out
    assert (paper / "out" / "papers" / "own.csv").read_text("utf-8").count("\n") == 3
    assert "own" in read_records(paper / "out" / "papers.json")
    assert "Which learns?" in (paper / "out" / "papers.md").read_text("utf-8")


@pytest.mark.parametrize("name", list_specs(papers.KIND))
def test_every_published_cell_selects_one_valid_configuration(name: str) -> None:
    for setting in read_mapping(spec.CONFIGS / papers.KIND / f"{name}.yaml")["settings"]:
        found = read_spec(name, setting, papers.KIND)
        runs = [
            {"seed": "0", **{key: plain(value) for key, value in run_of(configuration.command.config).options.items()}}
            for configuration, _ in expand(found.experiment, Path("runs"))
        ]
        columns = {key: "" for run in runs for key in run}
        conditions = [cell.where for cell in papers.published_cells(found) if cell.where is not None]
        about = [len(papers.select([columns | run for run in runs], where)) for where in conditions]
        assert max(about) == 1  # at most one configuration per cell
        assert setting == "small" or min(about) == 1
