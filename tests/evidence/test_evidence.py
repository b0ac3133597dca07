"""Checks, verdicts and their pages, which claims and experiments share."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from rich.console import Console

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
        (within("q", 0.5, 0.25, 0.75), "holds", "0.25 to 0.75"),
        (equals("q", math.nan, 4), "undecided", "= 4"),
        (at_most("q", -math.inf, 4), "holds", "≤ 4"),
    ],
)
def test_an_exact_check_is_a_point(check: Check, verdict: str, predicted: str) -> None:
    assert (check.verdict, check.predicted, check.interval_text) == (verdict, predicted, "exact")


@pytest.mark.parametrize(
    ("measured", "verdict", "known"),
    [  # predicted at least 0.9
        ([0.91, 0.95, 0.99, 1.0, 1.0], "holds", "0.91 to 1"),
        ([0.1, 0.2, 0.3, 0.2, 0.1], "fails", "0.1 to 0.3"),
        ([0.89, 0.95, 0.99, 1.0, 1.0], "undecided", "0.89 to 1"),
        ([0.2, *[1.0] * 9], "holds", "1 to 1"),  # of ten, one seed may miss
        ([1.0] * 4, "undecided", "–"),
        ([1.0] * 5 + [math.nan], "undecided", "–"),
        ([], "undecided", "–"),
        (Estimate(0.95, 0.92, 1.0), "holds", "0.92 to 1"),
        (Estimate(0.95, 0.5, 1.0), "undecided", "0.5 to 1"),
        (Estimate(math.nan, math.nan, math.nan), "undecided", "nan to nan"),
    ],
)
def test_a_check_of_samples_or_an_estimate_is_an_interval(measured: Any, verdict: str, known: str) -> None:
    found: Measured = dict(enumerate(measured)) if isinstance(measured, list) else measured
    check = at_least("q", found, 0.9)
    assert (check.verdict, check.interval_text) == (verdict, known)
    assert check.seeds == (tuple(range(len(measured))) if isinstance(measured, list) else ())
    assert bool(check.reason) == (known == "–")


def test_pairs_share_their_seeds() -> None:
    assert paired(lambda a, b: a - b, {0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0}) == {1: 1.0}


def test_a_control_voids_a_negative_and_a_premise_any_check() -> None:
    unlearned, learned = (at_most("hard", dict.fromkeys(range(5), score), 0.3) for score in (0.1, 0.9))
    control = at_least("easy", dict.fromkeys(range(5), 1.0), 0.9)
    weak = at_least("easy", dict.fromkeys(range(5), 0.5), 0.9)
    few = at_least("easy", {0: 1.0}, 0.9)
    assert controlled(unlearned, control).verdict == "holds"
    for controls in ((weak,), (control, weak), (few,)):
        assert controlled(unlearned, *controls).verdict == "undecided"
    assert "easy is 0.5 (0.5 to 0.5)" in controlled(unlearned, weak).reason
    assert controlled(learned, weak).verdict == "fails"  # what was learned needs no control
    assert [given(check, control).verdict for check in (unlearned, learned)] == ["holds", "fails"]
    assert {given(check, control, weak).verdict for check in (unlearned, learned)} == {"undecided"}


def verdict_of(*values: float, slogan: bool = False, name: str = "made_up") -> Verdict:
    """A verdict on checks that predict at most 2."""
    panel = Panel("Title", "x (units)", "y (units)", (Curve("a: bound", (1, 2), (0.5, 0.0)), Curve("b", (1,), (2,))))
    evidence = Evidence(tuple(at_most(f"q|{at}", value, 2) for at, value in enumerate(values)), (panel,))
    claim = Prediction(name, "Statement.", "Source", "Something else.", slogan=slogan)
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


def test_the_table_shows_the_check_that_decides() -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    with console.file:
        console.print(page.verdict_table([verdict_of(1.0, math.nan), verdict_of(1.0, math.nan, slogan=True)]))
    lines = console.export_text()
    assert "q|1: nan (≤ 2 predicted)" in lines
    assert "q|0: 1 (≤ 2 said)" in lines


@pytest.mark.parametrize(
    ("call", "package"),
    [
        (lambda: page.verdict_table([]), "rich"),
        (lambda: page.panels_figure(verdict_of(1.0).evidence.panels), "matplotlib"),
        (lambda: at_least("q", dict.fromkeys(range(5), 1.0), 0.9), "scipy"),
    ],
)
def test_a_missing_extra_is_named(
    call: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "import_module", raising(ModuleNotFoundError(name=package)))
    with refused(rf"{package} is not installed: pip install {package}, or .*\[report\]", extras.MissingExtraError):
        call()


def test_a_plot_of_shares_reaches_from_0_to_1_however_close_they_are() -> None:
    curves = (Curve("attention", (1, 2), (0.98, 0.99)),)
    panels = [Panel("recall", "x", "accuracy", curves, log_y=False, share=share) for share in (False, True)]
    close, whole = (axes.get_ylim() for axes in page.panels_figure(panels).axes)
    assert close[0] > 0.9
    assert whole[0] < 0 < 1 < whole[1] < 1.1


@pytest.mark.parametrize(
    ("names", "style", "place"),
    [  # lines have their names at their ends
        ([f"mixer {i}" for i in range(10)], "points", "at the points"),
        ([f"mixer {i}" for i in range(11)], "points", "beside"),
        ([f"S3, delta_product, dt_max 0.001, n_heads {i}" for i in range(5)], "points", "beside"),
        ([f"mixer {i}" for i in range(8)], "marked", "at the ends"),
        ([f"mixer {i}" for i in range(20)], "marked", "at the ends"),
    ],
)
def test_names_of_curves_cover_no_point(names: list[str], style: Any, place: str) -> None:
    xs = (0,) if style == "points" else (0, 1)
    curves = tuple(Curve(name, xs, [2.0 * i + x for x in xs], style) for i, name in enumerate(names))
    figure = page.panels_figure([Panel("recall", "x", "y", curves, log_y=False)])
    (axes,) = figure.axes
    legend = axes.get_legend()
    if place == "at the points":
        assert legend is None
        assert [text.get_text() for text in axes.texts] == names
        return
    figure.draw_without_rendering()
    # Of a name without the line that leads to it.
    extents = [legend.get_window_extent()] if legend else [Text.get_window_extent(text) for text in axes.texts]
    assert all(extent.x0 >= axes.get_window_extent().x1 and extent.x1 <= figure.bbox.x1 for extent in extents)
    if place == "at the ends":  # of more than eight, those that end lower are grey and have no name
        assert {text.get_text() for text in axes.texts} == set(names[-8:])
        heights = sorted((extent.y0, extent.y1) for extent in extents)
        assert all(lower[1] <= upper[0] + 1 for lower, upper in itertools.pairwise(heights))


def test_named_abscissae_have_a_legend_where_nothing_else_names_the_curves() -> None:
    def legends(*panels: Panel) -> list[bool]:
        return [axes.get_legend() is not None for axes in page.panels_figure(panels).axes]

    curves = (Curve("attention", (0, 1), (1.0, 2.0)), Curve("delta rule", (0, 1), (2.0, 1.0)))
    gates = Panel("gates", "", "accuracy", curves, x_names=("per head", "per channel"))
    assert legends(gates, gates) == [True, False]
    assert legends(Panel("text", "", "bits", curves, x_names=("attention", "delta rule"))) == [False]
