"""Renderer of verdicts: plain data for JSON, a section of Markdown, a table for the terminal, a figure of panels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.evidence.check import Check
from zoo.evidence.verdict import Panel, Verdict
from zoo.extras import require_extra
from zoo.registry import MIXERS
from zoo.report.files import finite
from zoo.report.markdown import table
from zoo.report.numbers import number
from zoo.report.plots import COLOURS, colours, name_lines, new_figure, styled, whole_numbers
from zoo.report.terminal import make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

_STYLES: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-"},
    "points": {"linestyle": "", "marker": "o", "markersize": 5},
    "marked": {"linestyle": "-", "marker": "o"},
    "stars": {"linestyle": "", "marker": "*", "markersize": 13},
    "dashed": {"linestyle": "--", "linewidth": 1.2},
}
RULE = (
    "A check holds if the whole 95 % interval is in the predicted region, fails if all of it is outside, and is "
    "undecided otherwise. Quantities measured over seeds are medians, with an interval from the order of the samples: "
    "for five seeds, the fewest allowed, from the smallest to the largest, which covers 93.75 %. Shares, rankings, "
    "correlations and rates of decay have intervals of their own; an exact quantity has none."
)
"""How checks are judged, for the pages."""
_WIDTH = 6.4  # inches, of a panel
_NEXT_TO_POINT = 30  # characters of a name that stands next to its point; longer ones stand in a legend beside the axes
_MOST_POINTS = 10  # that have their names next to them
_MOST_NAMES, _MOST_IN_A_COLUMN = 20, 6  # of a legend beside the axes, and of one within them
_MOST_LINES, _GREY = 8, "0.75"
_MOST_TICKS = 6


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data, as in claims.json; open ends and numbers that are not finite are None."""
    claim = verdict.claim
    record = {
        "name": claim.name,
        "kind": "slogan" if claim.slogan else "claim",
        "statement": claim.statement,
        "source": claim.source,
        "refuted_by": claim.refuted_by,
        "verdict": verdict.status,
        "as_expected": verdict.as_expected,
        "seconds": round(verdict.seconds, 3),
        "checks": [*map(check_record, verdict.evidence.checks)],
        "missing": verdict.evidence.missing,
        "panels": [
            {
                "title": panel.title,
                "x": panel.x_label,
                "y": panel.y_label,
                "curves": [{"label": each.label, "x": [*each.x], "y": [*each.y]} for each in panel.curves],
            }
            for panel in verdict.evidence.panels
        ],
    }
    return finite(record)


def check_record(check: Check) -> dict[str, Any]:
    """Return a check as plain data; an open end of the predicted region is None."""
    return finite(
        {
            "quantity": check.quantity,
            "value": check.value,
            "interval": check.interval,
            "predicted": [check.low, check.high],
            "verdict": check.verdict,
            "seeds": check.seeds,
            "reason": check.reason,
        }
    )


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """Return a rich table, one row per claim, with its deciding check (the first against expectation, else the last).

    Raises:
        MissingExtraError: rich is not installed.
    """
    text = require_extra("rich.text").Text
    rows = []
    for verdict in verdicts:
        checks, slogan = verdict.evidence.checks, verdict.claim.slogan
        right, wrong = ("fails", "holds") if slogan else ("holds", "fails")
        found = [check.verdict for check in checks]
        against = next((each for each in (wrong, "undecided") if each in found), None)
        telling = checks[found.index(against) if against else -1]
        value = f"{number(telling.value)}, {telling.interval_text}" if telling.interval else number(telling.value)
        said = f"{telling.predicted} {'said' if slogan else 'predicted'}"
        instance = f"{telling.quantity}: {value} ({said}{', ' if telling.reason else ''}{telling.reason})"
        colour = "green" if verdict.as_expected else "yellow" if verdict.status == "undecided" else "bold red"
        status, passed = text(verdict.status, style=colour), f"{found.count(right)}/{len(found)}"
        rows.append((verdict.claim.name, status, passed, instance, f"{verdict.seconds:.1f}"))
    shown = make_table(("claim", "verdict", "checks", "for instance", "s"), rows, "llrlr", title="Claims")
    for column in shown.columns[:2]:
        column.no_wrap = True
    return shown


def section(record: Mapping[str, Any], plots: Sequence[str]) -> list[str]:
    """Write lines of Markdown about one verdict.

    Args:
        record: result of `verdict_record`.
        plots: files with its panels, one each, or one with all of them.
    """
    slogan = record["kind"] == "slogan"
    lines = [
        f"## {record['name']}",
        "",
        record["statement"],
        "",
        f"- Source: {record['source']}",
        f"- {'Refuted' if slogan else 'Would be refuted'} by: {record['refuted_by']}",
        f"- Verdict: **{record['verdict']}**",
        "",
    ]
    if record["missing"]:
        lines += [f"Undecided while runs are missing: {', '.join(record['missing'])}.", ""]
    rows = check_rows(map(read_check, record["checks"]), "fails" if slogan else "holds")
    headings = ("quantity", "measured", "95 % interval", "the slogan implies" if slogan else "predicted", "verdict")
    lines += [*table(headings, rows, "lrrrl"), ""]
    titles = [panel["title"] for panel in record["panels"]]
    for plot, title in zip(plots, titles if len(plots) == len(titles) else ["; ".join(titles)], strict=True):
        lines += [f"![{title}]({plot})", ""]
    return lines


def check_rows(checks: Iterable[Check], expected: str = "holds") -> list[tuple[str, ...]]:
    """Return the cells of a table of checks: quantity, value, interval, predicted region, and verdict with a reason."""
    rows = []
    for check in checks:
        word = check.verdict if check.verdict == expected else f"**{check.verdict}**"
        verdict = f"{word}: {check.reason}" if check.reason else word
        rows.append((check.quantity, number(check.value), check.interval_text, check.predicted, verdict))
    return rows


def read_check(record: Mapping[str, Any]) -> Check:
    """Read a check from its record, in which open ends and numbers that are not finite are None."""
    low, high = (
        end if given is None else given for given, end in zip(record["predicted"], (-math.inf, math.inf), strict=True)
    )
    value, *ends = (math.nan if x is None else x for x in (record["value"], *(record["interval"] or ())))
    interval = (ends[0], ends[1]) if ends else None
    return Check(record["quantity"], value, low, high, interval, tuple(record["seeds"]), record["reason"])


@styled
def panels_figure(panels: Sequence[Panel], n_rows: int = 1) -> Figure:
    """Draw plots next to each other, in rows, as one matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    legends = 2 if any(map(_named_beside, panels)) else 0
    figure, places = new_figure(len(panels) // n_rows, n_rows, legends=legends, width=_WIDTH)
    explained: set[str] = set()
    for axes, panel in zip(places, panels, strict=True):
        labels = {curve.label for curve in panel.curves}
        _draw(axes, panel)
        if panel.x_names and not labels <= explained | set(panel.x_names):
            axes.legend()
        explained |= labels
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    drawn_in = _colours(panel)
    for curve in panel.curves:
        y = [max(value, panel.lowest) for value in curve.y] if panel.log_y else curve.y
        colour = drawn_in[curve.label]
        label = curve.label if colour != _GREY else f"_{curve.label}"
        axes.plot(curve.x, y, label=label, color=colour, **_STYLES[curve.style])
        if curve.ends:
            low, high = (
                [max(end, panel.lowest) if panel.log_y else end for end in ends]
                for ends in zip(*curve.ends, strict=True)
            )
            if curve.style == "points":
                axes.vlines(curve.x, low, high, color=colour, alpha=0.4, linewidth=1)
            else:
                axes.fill_between(curve.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        places = sorted({x for curve in panel.curves for x in curve.x})
        if len(places) <= _MOST_TICKS:  # powers of ten would miss them
            axes.set_xticks(places, labels=[number(x) for x in places])
            axes.minorticks_off()
        elif places[-1] < 100 * places[0]:
            ticker = require_extra("matplotlib.ticker")
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: number(x)))
            axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
    elif panel.share:
        axes.set_ylim(-0.03, 1.03)
    if panel.whole_x:
        axes.xaxis.set_major_locator(whole_numbers())
    if panel.x_names:
        for curve in panel.curves:
            axes.plot(curve.x[:1], statistics.median(curve.y), marker="_", markersize=22, color=drawn_in[curve.label])
        axes.set_xticks(range(len(panel.x_names)), labels=panel.x_names, rotation=20)
        return
    if _named_beside(panel):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), ncols=-(-len(panel.curves) // _MOST_NAMES))
        return
    if _of_points(panel):  # many of one point share ten colours
        for curve in panel.curves:
            at = (curve.x[0], curve.y[0])
            axes.annotate(curve.label, at, (5, 0), textcoords="offset points", va="center")
        axes.margins(x=0.15)
        return
    if _scattered(panel):
        axes.legend(ncols=1 if len(panel.curves) <= _MOST_IN_A_COLUMN else 2)
    else:
        name_lines(axes)


def _colours(panel: Panel) -> dict[str, str]:
    """Return the colour of each curve: that of its mixer, if no two curves have the same one.

    Of more than `_MOST_LINES` lines, those that end highest keep their colours; the others are grey.
    """
    families = list(dict.fromkeys(_family(curve.label) for curve in panel.curves))
    mixers = {family: family.partition(",")[0] for family in families}
    if len(set(mixers.values())) == len(families) and set(mixers.values()) & set(MIXERS):
        own = colours(mixers.values(), MIXERS)
        of_family = {family: own[mixer] for family, mixer in mixers.items()}
    else:
        of_family = {family: COLOURS[at % len(COLOURS)] for at, family in enumerate(families)}
    lines = [] if _scattered(panel) or panel.x_names else [each for each in panel.curves if len(each.x) > 1]
    grey = {curve.label for curve in sorted(lines, key=lambda curve: -curve.y[-1])[_MOST_LINES:]}
    return {each.label: _GREY if each.label in grey else of_family[_family(each.label)] for each in panel.curves}


def _scattered(panel: Panel) -> bool:
    return all(curve.style == "points" for curve in panel.curves)


def _of_points(panel: Panel) -> bool:
    return bool(panel.curves) and all(len(curve.x) == 1 for curve in panel.curves)


def _named_beside(panel: Panel) -> bool:
    """Whether the names of curves take more room than there is within the axes."""
    n = len(panel.curves)
    if _of_points(panel):
        return n > _MOST_POINTS or max(len(curve.label) for curve in panel.curves) > _NEXT_TO_POINT
    return _scattered(panel) and n > _MOST_IN_A_COLUMN  # a legend within the axes would hide points


def _family(label: str) -> str:
    """Return the part of a label that decides the colour: 'k = 4: bound' and 'k = 4: trained' share one."""
    return label.partition(":")[0]
