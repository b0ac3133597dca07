"""Render pages from records: docs/{results,findings,choosing}.md, the figures of results, and README's findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from lab.experiments.probes import PROBES
from lab.experiments.rows import Row, UnknownColumnError, describe, group, median_of, number_of, option_name, select
from lab.experiments.spec import ROOT, Spec, read_spec
from lab.view.cells import task_names
from lab.view.leaderboard import Leaderboard, groups_of
from zoo.errors import UsageError
from zoo.evidence import Check, Curve, Panel
from zoo.evidence.interval import FEWEST_SEEDS, of_median
from zoo.evidence.page import check_rows, read_check
from zoo.extras import require_extra
from zoo.report.files import read_json
from zoo.report.markdown import replace_part, table
from zoo.report.numbers import duration, number, size

Value = TypeVar("Value")
TEMPLATES = ROOT / "docs" / "templates"
DROPPED = ROOT / "docs" / "results" / "dropped.yaml"
_LABELS = {
    "relative_squared_error / bound": "error / bound",
    "accuracy": "test accuracy",
    "relative_squared_error": "relative squared error",
    "bits_per_token": "test bits per symbol",
    "state_bytes": "bytes of state after the sequence",
    "state_bytes / task.n_pairs": "bytes of state per pair",
    "gradient": "initial gradient, relative to the last position",
    "speed": "1 / steps to 90 %",
    "steps": "steps to 90 %",
}


def panels(spec: Spec, rows: Sequence[Row]) -> list[Panel]:
    """Return the panels of a spec's figure: lines of medians over seeds, or a point per run over categories."""
    found = []
    for plot in spec.plots:
        chosen = select(rows, plot.get("where", {}))
        by_panel = group(chosen, plot["panel"]) if "panel" in plot else {(plot.get("title", spec.name),): chosen}
        found += [_panel(plot, title, there) for (title,), there in by_panel.items()]
    return found


def _panel(plot: Mapping[str, Any], title: str, rows: Sequence[Row]) -> Panel:
    x, y, log = plot["x"], plot["y"], plot.get("log", "")
    score = y.rpartition("/")[2] if y.startswith("test/") else y  # the panel's title describes the test
    names: tuple[str, ...] = ()
    renamed = plot.get("names", {})
    if isinstance(x, list) or (x != "length" and any(math.isnan(number_of(row, x)) for row in rows)):
        cells = {renamed.get(text := ", ".join(values), text): cell for values, cell in group(rows, x).items()}
        values = {name: [*filter(math.isfinite, (number_of(row, y) for row in cell))] for name, cell in cells.items()}
        names = tuple(sorted(cells, key=lambda name: median(values[name]) if values[name] else math.inf))
        if cells.keys() <= set(renamed.values()):  # the same order in all panels
            names = tuple(name for name in renamed.values() if name in cells)
        curves = [Curve(name, [at] * len(values[name]), values[name], "points") for at, name in enumerate(names)]
        x = ""
    else:
        style = "points" if x in {column for probe in PROBES.values() for column in probe.columns} else "marked"
        given = plot.get("line", [])
        line = [given] if isinstance(given, str) else given
        texts = [(describe({name: cell[0][name] for name in line}) or y, cell) for cell in group(rows, line).values()]
        order = [*renamed]  # renamed lines have the same colours in every panel
        texts.sort(key=lambda line: order.index(line[0]) if line[0] in renamed else len(order))
        lines = {renamed.get(text, text): there for text, there in texts}
        curves = [
            _curve(label, _points(there, x, y), style, _points(there, x, y, _interval))
            for label, there in lines.items()
        ]
        if "bound" in plot:
            bounds = {f"{label}: bound": _points(there, x, plot["bound"]) for label, there in lines.items()}
            joined = {at: value for bound in bounds.values() for at, value in bound.items()}
            alike = all(bound.items() <= joined.items() for bound in bounds.values())
            shown = {"bound": joined} if alike else bounds
            curves += [_curve(label, bound, "beneath") for label, bound in shown.items()]
    return Panel(
        title,
        _LABELS.get(x, option_name(x)),
        str(_LABELS.get(score, score)),
        tuple(curves),
        log_x="x" in log,
        log_y="y" in log,
        x_names=names,
        lowest=1e-13 if y == "relative_squared_error" else 1e-60,
        share=score == "accuracy",
        whole_x=x.startswith("mixer.n_"),
    )


def _points(
    rows: Sequence[Row], x: str, y: str, of: Callable[[Sequence[Row], str], Value] = median_of
) -> dict[float, Value]:
    """Return the medians over seeds by x; for x = length, at the training length and at each test length."""
    if x != "length":
        at = {number_of(row, x): [each for each in rows if number_of(each, x) == number_of(row, x)] for row in rows}
        return {each: of(cell, y) for each, cell in at.items()}
    found = {float(rows[0]["task.seq_len"]): of(rows, y)}
    begin, end = "test/at_length/", f"/{y}"
    for name in rows[0]:
        if name.startswith(begin) and name.endswith(end):
            found[float(name.removeprefix(begin).removesuffix(end))] = of(rows, name)
    return found


def _interval(rows: Sequence[Row], y: str) -> tuple[float, float]:
    """Return the ends of the median's interval; NaN for fewer than `FEWEST_SEEDS` seeds."""
    values = [number_of(row, y) for row in rows]
    return of_median(values)[1:] if len(values) >= FEWEST_SEEDS else (math.nan, math.nan)


def _curve(label: str, points: Mapping[float, float], style: Any, ends: Mapping[float, Any] | None = None) -> Curve:
    shown = {x: points[x] for x in sorted(points) if math.isfinite(points[x])}
    return Curve(label, tuple(shown), tuple(shown.values()), style, tuple(ends[x] for x in shown) if ends else ())


def figure(spec: Spec, rows: Sequence[Row]) -> bytes | None:
    """Return the figure of an experiment as PNG; None if its runs or the columns of its probes are missing."""
    from zoo.evidence.page import panels_figure
    from zoo.report.plots import as_png

    try:
        return as_png(panels_figure(panels(spec, rows))) if rows and spec.plots else None
    except UnknownColumnError:
        if spec.probes:
            return None
        raise


class Pages:
    """Render templates from records; a placeholder without a record is an error."""

    def __init__(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        jinja2 = require_extra("jinja2")
        self.records = records
        self.jinja = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self.jinja.filters |= {"number": number, "duration": duration, "seeds": _seeds}
        self.jinja.globals |= {"records": records, "table": lambda *parts: "\n".join(table(*parts))}
        for function in (self.check, self.score, self.found, self.effect, self.checks_of):
            self.jinja.globals[function.__name__] = function

    def check(self, name: str, quantity: str) -> Check:
        """Return a check of a record.

        Raises:
            UsageError: an unknown record or check.
        """
        for each in self.records.get(name, {}).get("checks", ()):
            if each["quantity"] == quantity:
                return read_check(each)
        raise UsageError(f"no check {quantity!r} in a record of {name!r}")

    def score(self, name: str) -> str:
        """Return an experiment's verdict and count, such as "fails, 6 of 13 checks hold"."""
        if name not in self.records:
            raise UsageError(f"no record of {name!r}")
        found = [check["verdict"] for check in self.records[name]["checks"]]
        return f"{self.records[name]['verdict']}, {found.count('holds')} of {len(found)} checks hold"

    def checks_of(self, name: str) -> list[tuple[str, ...]]:
        """Return the rows of the table of an experiment's checks."""
        return check_rows(map(read_check, self.records[name]["checks"]))

    def effect(self, name: str) -> Check | None:
        """Return the check under `effect` in the file, else the first one; None while runs are missing."""
        record, chosen = self.records[name], self._spec(name).effect
        if record.get("missing") or not record["checks"]:
            return None
        return self.check(name, chosen) if chosen else read_check(record["checks"][0])

    def found(self, name: str) -> str:
        """Return the rendered text `found` of the experiment's file; without one, the number of checks that hold."""
        text = self._spec(name).found
        if self.effect(name) is None:
            return "some runs are missing."
        return self.jinja.from_string(text).render() if text else f"{self.score(name)}."

    def _spec(self, name: str) -> Spec:
        return read_spec(name, self.records[name]["setting"])

    def render(self, template: str, **context: Any) -> str:
        """Return the text of a template of docs/templates.

        Raises:
            UsageError: a placeholder without a record.
        """
        import yaml

        dropped = yaml.safe_load(DROPPED.read_text(encoding="utf-8"))
        try:
            return self.jinja.get_template(template).render(dropped=dropped, **context)
        except require_extra("jinja2").TemplateError as error:
            raise UsageError(f"{template}: {error}") from None


def _seeds(check: Check) -> str:
    """Format a share of the seeds as a count, such as "4 of 5 seeds"."""
    count = round(check.value * len(check.seeds))
    return f"{count or 'none'} of {len(check.seeds)} seeds"


def _power(exponent: float) -> str:
    """Format a power of n, with the exponent rounded."""
    return {0.0: "1", 1.0: "n"}.get(round(exponent, 1), f"n^{number(exponent, 1)}")


def choosing(rendered: Pages) -> str:
    """Return the page on choosing a mixer, from the records of docs/leaderboard.json and docs/gallery.json."""
    gallery, board = read_json(ROOT / "docs" / "gallery.json"), Leaderboard(ROOT / "docs").shown
    cards = {card["name"]: card for card in gallery["items"]}
    usual = {name: card["variants"][2 if len(card["variants"]) > 2 else 0] for name, card in cards.items()}
    groups = {group.title: group for group in groups_of(board, task_names())}

    def best(task: str, grows: bool) -> str:
        found = []
        for row in groups[task].rows if task in groups else ():
            sizes = usual[row.label]["state_bytes"] if row.label in usual else ()
            if sizes and None not in sizes and (sizes[0] < sizes[1]) == grows:
                found.append(row)
        solving = [row for row in found if row.solved and 2 * row.solved[0] > row.solved[1]]
        return ", ".join(f"`{row.label}` {row.short_text}" for row in solving[:3] or found[:1]) or "not run"

    return rendered.render(
        "choosing.md.j2",
        best=best,
        n_run=len(board),
        n_cells=len(cards) * len(task_names()),
        width=gallery["d_model"],
        state=lambda name: size(usual[name]["state_bytes"][-1]),
        cost=lambda name, of: _power(cards[name]["cost"][of]),
        rank=lambda name: usual[name]["inputs"][gallery["inputs"][0]]["rank"],
    )


def pages(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return all pages by their paths in the repository: results, findings, choosing, and README with its findings."""
    rendered = Pages(records)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {
        "docs/results.md": rendered.render("results.md.j2"),
        "docs/findings.md": rendered.render("findings.md.j2"),
        "docs/choosing.md": choosing(rendered),
        "README.md": replace_part(readme, "found", rendered.render("README.md.j2")),
    }
