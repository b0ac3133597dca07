"""zoo.evidence: checks, verdicts and their pages, shared by claims and experiments."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import raising, refused
from zoo import extras
from zoo.evidence import (
    Check,
    Curve,
    Estimate,
    Evidence,
    Measured,
    Panel,
    Prediction,
    Verdict,
    at_least,
    at_most,
    controlled,
    equals,
    exit_status,
    given,
    near,
    page,
    paired,
    within,
)


@pytest.mark.parametrize(
    ("check", "verdict", "predicted"),
    [
        (equals("q", 4, 4), "holds", "= 4"),
        (equals("q", 5, 4), "fails", "= 4"),
        (at_most("q", 1e-13, 1e-12), "holds", "≤ 1e-12"),
        (at_most("q", 1e-11, 1e-12), "fails", "≤ 1e-12"),
        (at_least("q", 0.2, 0.1), "holds", "≥ 0.1"),
        (at_least("q", 0.05, 0.1), "fails", "≥ 0.1"),
        (near("q", -1.009, -1, 0.01), "holds", "-1 ± 0.01"),
        (near("q", -1.011, -1, 0.01), "fails", "-1 ± 0.01"),
        (near("q", 1.022, 1, 0.025), "holds", "1 ± 0.025"),
        (within("q", 0.14, -0.15, 0.15), "holds", "0 ± 0.15"),
        (within("q", 0.5, 0.25, 0.75), "holds", "0.25 to 0.75"),
        (equals("q", math.nan, 4), "undecided", "= 4"),
        (at_most("q", -math.inf, 4), "holds", "≤ 4"),
    ],
)
def test_a_check_of_one_number_is_exact(check: Check, verdict: str, predicted: str) -> None:
    assert (check.verdict, check.predicted, check.interval_text) == (verdict, predicted, "exact")


@pytest.mark.parametrize(
    ("measured", "verdict", "known"),
    [  # predicted at least 0.9
        ([0.91, 0.95, 0.99, 1.0, 1.0], "holds", "0.91 to 1"),
        ([0.1, 0.2, 0.3, 0.2, 0.1], "fails", "0.1 to 0.3"),
        ([0.89, 0.95, 0.99, 1.0, 1.0], "undecided", "0.89 to 1"),
        ([0.2, *[1.0] * 9], "holds", "1 to 1"),  # one seed of ten may miss
        ([1.0] * 4, "undecided", "–"),
        ([1.0] * 5 + [math.nan], "undecided", "–"),
        ([], "undecided", "–"),
        (Estimate(0.95, 0.92, 1.0), "holds", "0.92 to 1"),
        (Estimate(0.95, 0.5, 1.0), "undecided", "0.5 to 1"),
        (Estimate(math.nan, math.nan, math.nan), "undecided", "nan to nan"),
    ],
)
def test_a_check_of_samples_or_an_estimate_uses_its_interval(measured: Any, verdict: str, known: str) -> None:
    found: Measured = dict(enumerate(measured)) if isinstance(measured, list) else measured
    check = at_least("q", found, 0.9)
    assert (check.verdict, check.interval_text) == (verdict, known)
    assert check.seeds == (tuple(range(len(measured))) if isinstance(measured, list) else ())
    assert bool(check.reason) == (known == "–")


def test_without_the_number_of_a_seed_there_is_no_median() -> None:
    for order in itertools.permutations([0.1, 0.5, math.nan]):
        assert math.isnan(at_least("q", dict(enumerate(order)), 0.9).value)
    assert at_least("q", {0: 0.1, 1: 0.5}, 0.9).value == 0.3


def test_pairs_share_their_seeds() -> None:
    assert paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0}) == {1: 1.0}


def test_without_its_control_a_negative_is_undecided_and_without_its_premise_any_check() -> None:
    unlearned, learned = (at_most("hard", dict.fromkeys(range(5), score), 0.3) for score in (0.1, 0.9))
    control = at_least("easy", dict.fromkeys(range(5), 1.0), 0.9)
    weak = at_least("easy", dict.fromkeys(range(5), 0.5), 0.9)
    few = at_least("easy", {0: 1.0}, 0.9)
    assert controlled(unlearned, control).verdict == "holds"
    for controls in ((weak,), (control, weak), (few,)):
        assert controlled(unlearned, *controls).verdict == "undecided"
    assert "easy is 0.5 (0.5 to 0.5)" in controlled(unlearned, weak).reason
    assert controlled(learned, weak).verdict == "fails"  # a learned task needs no control
    assert [given(check, control).verdict for check in (unlearned, learned)] == ["holds", "fails"]
    assert {given(check, control, weak).verdict for check in (unlearned, learned)} == {"undecided"}


def verdict_of(*values: float, slogan: bool = False) -> Verdict:
    """A verdict on these values, each predicted to be at most 2."""
    panel = Panel("Title", "x (units)", "y (units)", (Curve("a: bound", (1, 2), (0.5, 0.0)), Curve("b", (1,), (2,))))
    evidence = Evidence(tuple(at_most(f"q|{at}", value, 2) for at, value in enumerate(values)), (panel,))
    claim = Prediction("made_up", "Statement.", "Source", "Something else.", slogan=slogan)
    return Verdict(claim, evidence, claim.judge(evidence), 1.25)


@pytest.mark.parametrize(
    ("values", "as_claim", "as_slogan", "statuses"),
    [
        ((1.0, 1.0), "holds", "not refuted", (0, 1)),
        ((1.0, 9.0), "fails", "not refuted", (1, 1)),
        ((9.0, 9.0), "fails", "refuted as predicted", (1, 0)),
        ((9.0, math.nan), "fails", "undecided", (1, 3)),
        ((1.0, math.nan), "undecided", "not refuted", (3, 1)),
    ],
)
def test_a_verdict_and_the_exit_status_follow_from_the_checks(
    values: tuple[float, ...], as_claim: str, as_slogan: str, statuses: tuple[int, int]
) -> None:
    for slogan, status, code in zip((False, True), (as_claim, as_slogan), statuses, strict=True):
        verdict = verdict_of(*values, slogan=slogan)
        assert (verdict.status, exit_status([verdict])) == (status, code)
        assert verdict.as_expected == (code == 0)
        missing = dataclasses.replace(verdict.evidence, missing=("run3",))
        assert verdict.claim.judge(missing) == "undecided"
    assert exit_status([verdict_of(9.0), verdict_of(math.nan)]) == 1
    assert exit_status([]) == 0


def test_a_curve_without_points_is_not_named() -> None:
    panel = Panel("t", "x", "y", (Curve("a", (1, 2), (1, 2)), Curve("none", (), ())))
    (axes,) = page.panels_figure([panel]).axes
    assert [text.get_text() for text in axes.texts] == ["a"]


def test_zero_is_drawn_at_the_lowest_value_of_a_logarithmic_axis() -> None:
    panel = Panel("t", "x", "y", (Curve("a", (0.0, 0.1), (0.0, 0.1)),), log_x=True, lowest=1e-9)
    (axes,) = page.panels_figure([panel]).axes
    assert [list(values) for values in axes.lines[0].get_data()] == [[1e-9, 0.1]] * 2


def test_a_record_reads_back_and_its_section_has_each_check() -> None:
    verdict = verdict_of(1.0, math.nan)
    record = json.loads(json.dumps(page.verdict_record(verdict)))
    exact = {"interval": None, "predicted": [None, 2], "verdict": "holds", "seeds": [], "reason": ""}
    assert record["checks"][0] == {"quantity": "q|0", "value": 1} | exact
    assert record["checks"][1]["value"] is None
    assert [page.read_check(each).verdict for each in record["checks"]] == ["holds", "undecided"]
    text = "\n".join(page.section(record, ["made_up.png"]))
    assert "| q\\|1 | nan | exact | ≤ 2 | **undecided** |" in text
    assert "](made_up.png)" in text


@pytest.mark.parametrize("measured", [0.5, {}, dict.fromkeys(range(5), 0.5), Estimate(0.5, 0.4, 0.6)])
def test_a_limit_that_is_not_a_number_decides_nothing_also_when_read_back(measured: Measured) -> None:
    for check in (at_least("q", measured, math.nan), near("q", measured, math.nan, 0.1)):
        back = page.read_check(json.loads(json.dumps(page.check_record(check))))
        assert (check.verdict, back.verdict, bool(back.reason)) == ("undecided", "undecided", True)


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (lambda: page.verdict_table([]), "rich"),
        (lambda: page.panels_figure(verdict_of(1.0).evidence.panels), "matplotlib"),
        (lambda: at_least("q", dict.fromkeys(range(5), 1.0), 0.9), "scipy"),
    ],
)
def test_a_missing_extra_is_reported(
    call: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "import_module", raising(ModuleNotFoundError(name=package)))
    with refused(rf"{package} is not installed: pip install {package}, or .*\[report\]", extras.MissingExtraError):
        call()
