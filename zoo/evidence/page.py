"""Render verdicts as JSON records, Markdown sections, terminal tables and figures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.evidence.check import Check
from zoo.evidence.verdict import Panel, Verdict
from zoo.extras import require_extra
from zoo.registry import MIXERS
from zoo.report.files import finite
from zoo.report.markdown import table
from zoo.report.numbers import number
from zoo.report.plots import COLOURS, look_of, name_lines, new_figure, styled, whole_numbers
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
    "beneath": {"linestyle": "-", "linewidth": 7.0, "alpha": 0.3, "zorder": 1.0},
}
RULE = (
    "A check holds if the whole 95 % interval is in the predicted region, fails if all of it is outside, and is "
    "undecided otherwise. Quantities measured over seeds are medians, and their intervals end at two of the samples: "
    "for five seeds, the fewest allowed, at the smallest and the largest, which covers 93.75 %. Shares, rankings, "
    "correlations and decay rates have other intervals; exact quantities have none."
)
"""How checks are judged, for the pages."""
_WIDTHS = (6.4, 4.2)  # inches: width of a single panel, and of a panel next to another
_MOST_NAMES, _MOST_IN_A_COLUMN = 20, 6  # most entries per column of a legend beside the axes, and within them
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"fillstyle": "full"},
    {"linestyle": (0, (4, 2)), "fillstyle": "none"},
    {"linestyle": (0, (1, 1)), "fillstyle": "left"},
    {"linestyle": (0, (4, 1, 1, 1)), "fillstyle": "right"},
)
_MOST_TICKS, _LEAST_GAP = 6, 0.12  # a tick at each x if there are at most so many, this share of the axis apart


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data for claims.json; open ends and numbers that are not finite become None."""
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
    """Return a check as plain data; open ends of the predicted region become None."""
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
    """Return a rich table of claims; each row shows the first wrong check, else the first undecided one, else the last.

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
        expected = f"{telling.predicted} {'implied' if slogan else 'predicted'}"
        instance = f"{telling.quantity}: {value} ({expected}{', ' if telling.reason else ''}{telling.reason})"
        colour = "green" if verdict.as_expected else "yellow" if verdict.status == "undecided" else "bold red"
        status, passed = text(verdict.status, style=colour), f"{found.count(right)}/{len(found)}"
        rows.append((verdict.claim.name, status, passed, instance, f"{verdict.seconds:.1f}"))
    shown = make_table(("claim", "verdict", "checks", "for instance", "s"), rows, "llrlr", title="Claims")
    for column in shown.columns[:2]:
        column.no_wrap = True
    return shown


def section(record: Mapping[str, Any], plots: Sequence[str]) -> list[str]:
    """Return the Markdown section of a verdict, as lines.

    Args:
        record: result of `verdict_record`.
        plots: image files, one per panel or one with all panels.
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
    """Return the cells of a table of checks: quantity, value, interval, predicted region, verdict with its reason."""
    rows = []
    for check in checks:
        word = check.verdict if check.verdict == expected else f"**{check.verdict}**"
        verdict = f"{word}: {check.reason}" if check.reason else word
        rows.append((check.quantity, number(check.value), check.interval_text, check.predicted, verdict))
    return rows


def read_check(record: Mapping[str, Any]) -> Check:
    """Read a check from its record; None is an open end, or a number that was not finite."""
    low, high = (
        end if given is None else given for given, end in zip(record["predicted"], (-math.inf, math.inf), strict=True)
    )
    value, *ends = (math.nan if x is None else x for x in (record["value"], *(record["interval"] or ())))
    interval = (ends[0], ends[1]) if ends else None
    return Check(record["quantity"], value, low, high, interval, tuple(record["seeds"]), record["reason"])


@styled
def panels_figure(panels: Sequence[Panel], n_rows: int = 1) -> Figure:
    """Draw panels in rows, as one matplotlib figure.

    If a panel has the same curve names as the next one, only the next one shows them.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    n_columns, names = len(panels) // n_rows, [{curve.label for curve in panel.curves} for panel in panels]
    figure, places = new_figure(n_columns, n_rows, width=_WIDTHS[min(n_columns, 2) - 1])
    to_name = []
    for at, (axes, panel) in enumerate(zip(places, panels, strict=True)):
        _draw(axes, panel)
        if at + 1 < len(panels) and names[at] == names[at + 1]:
            continue
        if _is_listed(panel):
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), ncols=-(-len(panel.curves) // _MOST_NAMES))
        elif not panel.x_names and _scattered(panel):
            axes.legend()
        elif not panel.x_names:
            to_name.append(axes)
    name_lines(*to_name)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    looks, across = _looks(panel), bool(panel.x_names)  # long names are horizontal, on the vertical axis
    leftmost = min([panel.lowest, *(x for curve in panel.curves for x in curve.x if x > 0)])  # the place of zero
    for curve in panel.curves:
        x = [max(value, leftmost) for value in curve.x] if panel.log_x and not across else curve.x
        y = [max(value, panel.lowest) for value in curve.y] if panel.log_y else curve.y
        style = _STYLES[curve.style]
        look = style | looks[curve.label]
        look |= {} if style["linestyle"] == "-" else {"linestyle": style["linestyle"]}
        look |= {} if style.get("marker") == "o" else {"marker": style.get("marker")}
        look |= style if curve.style == "beneath" else {}
        axes.plot(*((y, x) if across else (x, y)), label=curve.label, **look)
        if across and len({*curve.x}) == 1:
            axes.plot(statistics.median(curve.y), curve.x[0], marker="|", markersize=22, color=look["color"])
        if curve.ends:
            low, high = (
                [max(end, panel.lowest) if panel.log_y else end for end in ends]
                for ends in zip(*curve.ends, strict=True)
            )
            if curve.style == "points":
                axes.vlines(x, low, high, color=look["color"], alpha=0.4, linewidth=1)
            else:
                axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_title(panel.title)
    if across:
        axes.set(xlabel=panel.y_label, xscale="log" if panel.log_y else "linear")
        axes.set_yticks(range(len(panel.x_names)), labels=panel.x_names)
        axes.set_ylim(len(panel.x_names) - 0.5, -0.5)  # the first name on top
        if panel.share:
            axes.set_xlim(-0.03, 1.03)
        return
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        places = sorted({max(x, leftmost) for curve in panel.curves for x in curve.x})
        gaps = [math.log(high / low) for low, high in itertools.pairwise(places)]
        if len(places) <= _MOST_TICKS and min(gaps, default=1.0) >= _LEAST_GAP * sum(gaps):
            # The default ticks, powers of ten, would miss them.
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


def _looks(panel: Panel) -> dict[str, dict[str, Any]]:
    """Return {label: look}: colour and marker of the curve's mixer; for other curves a colour that no mixer has.

    Curves with the same mixer, and curves without one, differ in dashes and in the fill of their markers.
    """
    families = list(dict.fromkeys(_family(curve.label) for curve in panel.curves))
    named = {family: [part for part in family.lower().split(", ") if part in MIXERS] for family in families}
    mixers = {family: parts[0] for family, parts in named.items() if parts}
    taken = {look_of(mixer).colour for mixer in mixers.values()}
    free = [colour for colour in COLOURS if colour not in taken] or COLOURS
    others, found, seen = itertools.cycle(free), {}, Counter[str]()
    for family in families:
        if family in mixers:
            look, variant = look_of(mixers[family]), seen[mixers[family]] % len(_VARIANTS)
            found[family] = {"color": look.colour, "marker": look.marker} | _VARIANTS[variant]
            seen[mixers[family]] += 1
        else:
            variant = {} if _scattered(panel) else _VARIANTS[seen[""] % len(_VARIANTS)]
            found[family] = {"color": next(others)} | variant
            seen[""] += 1
    return {each.label: found[_family(each.label)] for each in panel.curves}


def _scattered(panel: Panel) -> bool:
    return all(curve.style == "points" for curve in panel.curves)


def _is_listed(panel: Panel) -> bool:
    """Return whether a scatter plot needs its legend beside the axes, because it would hide points within them."""
    if panel.x_names:
        return not {curve.label for curve in panel.curves} <= {*panel.x_names}
    return _scattered(panel) and len(panel.curves) > _MOST_IN_A_COLUMN and any(len(each.x) > 1 for each in panel.curves)


def _family(label: str) -> str:
    """Return the part of a label that determines the colour, which 'k = 4: bound' and 'k = 4: trained' share."""
    return label.partition(":")[0]
