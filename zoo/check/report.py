"""A report as a card on the terminal, and as one HTML page with plots that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from zoo.check.checker import properties
from zoo.check.finding import Finding, Report
from zoo.report.plots import as_png, new_figure, styled
from zoo.report.terminal import make_console, make_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {"passed": "✓", "failed": "✗", "not_applicable": "–"}
_COLOURS = {"passed": "green", "failed": "bold red", "not_applicable": "dim"}

_STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid light-dark(#ddd, #444); padding: .3em .6em; vertical-align: top; }
td:first-child { color: light-dark(#666, #aaa); white-space: nowrap; } td:last-child { overflow-wrap: anywhere; }
.passed { color: light-dark(#00734f, #5fd3a0); } .not_applicable { color: light-dark(#777, #aaa); }
.failed { color: light-dark(#b00020, #ff8a95); font-weight: bold; }
pre { background: light-dark(#f6f6f6, #2a2a2a); padding: .8em; white-space: pre-wrap; font-size: 13px; }
figure { display: inline-block; margin: 0 1em 1em 0; } img { max-width: min(34em, 100%); }
"""


def print_card(report: Report, console: Console | None = None) -> None:
    """Print verdicts by topic, then every failure with the command that reproduces it."""
    console = console or make_console()
    console.print(Text(report.target, "bold").append(f"  {_setting(report)}", "not bold"))
    rows = [
        (Text(topic, "dim"), Text(MARKS[each.verdict], _COLOURS[each.verdict]), each.property, each.detail)
        for topic, each in _by_topic(report)
    ]
    table = make_table(("", "", "", ""), rows)
    for column in table.columns[:3]:
        column.no_wrap = True
    console.print(table, highlight=False)
    for finding in report.failed:
        console.print(Text(f"✗ {finding.property}", "bold red").append(f": {finding.detail}", "not bold default"))
        console.print(f"    {finding.reproduce}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(_counts(report), highlight=False)


def as_html(report: Report) -> str:
    """Return the page as text, with its pictures inside.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    rows = "".join(
        f'<tr><td>{escape(topic)}</td><td class="{each.verdict}">{MARKS[each.verdict]}</td>'
        f"<td><code>{each.property}</code></td><td>{escape(each.detail)}"
        f"{f'<pre>{escape(each.reproduce)}</pre>' if each.verdict == 'failed' else ''}</td></tr>\n"
        for topic, each in _by_topic(report)
    )
    figures = "".join(
        f'<figure><img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></figure>'
        for title, picture in _pictures(report)
    )
    title = f"{escape(report.target)} against the contract of a sequence mixer"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>{_counts(report)}. {escape(_setting(report))}.</p>\n{figures}\n<table>\n{rows}</table>\n</body>\n</html>\n"
    )


def _by_topic(report: Report) -> Iterator[tuple[str, Finding]]:
    """Yield each finding after its topic, which is empty if it is that of the finding before."""
    topics, before = {each.name: each.topic for each in properties()}, ""
    for finding in report.findings:
        topic = topics[finding.property]
        yield ("" if topic == before else topic), finding
        before = topic


def _setting(report: Report) -> str:
    return ", ".join(f"{name} {value}" for name, value in report.setting.items() if value not in ({}, None, False))


def _counts(report: Report) -> str:
    counts = {verdict: sum(each.verdict == verdict for each in report.findings) for verdict in MARKS}
    return ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items())


def _pictures(report: Report) -> Iterator[tuple[str, bytes]]:
    """Yield a title and a PNG for each measurement."""
    measured = {finding.property: finding.measured for finding in report.findings if finding.measured}
    streamed = {name: measured[name]["error_by_position"] for name in ("chunked", "one_by_one") if name in measured}
    if streamed:
        yield "Streamed against whole", _drawn(_errors, streamed)
    for name, (title, draw) in _PLOTS.items():
        if name in measured:
            yield title, _drawn(draw, measured[name])


@styled
def _drawn(draw: Any, values: Mapping[str, Any]) -> bytes:
    figure, (axes,) = new_figure()
    draw(axes, values)
    return as_png(figure)


def _errors(axes: Axes, values: Mapping[str, Any]) -> None:
    floor = 1e-17  # an exact agreement has no place on a logarithmic axis
    for name, errors in values.items():
        axes.semilogy(range(len(errors)), [max(error, floor) for error in errors], label=name, marker="o")
    axes.set(title="Streamed against whole", xlabel="position", ylabel="largest difference")
    axes.legend()


def _gradient(axes: Axes, values: Mapping[str, Any]) -> None:
    kept = [(tau, j) for tau, j in zip(values["distances"], values["median"], strict=True) if j > 0]
    axes.semilogy([tau for tau, _ in kept], [j for _, j in kept])
    axes.set(title="Gradient against distance", xlabel="distance", ylabel="norm of the Jacobian, median")


def _memory(axes: Axes, values: Mapping[str, Any]) -> None:
    axes.loglog(values["lengths"], [size / 2**20 for size in values["bytes"]], marker="o")
    axes.set(title="Memory kept for the backward pass", xlabel="positions", ylabel="MiB")


def _spectrum(axes: Axes, values: Mapping[str, Any]) -> None:
    largest = max(values["spectrum"]) or 1.0
    axes.semilogy([max(value / largest, 1e-17) for value in values["spectrum"]], marker="o")
    axes.set(title="Singular values of the operator's span", xlabel="head", ylabel="relative to the largest")


_PLOTS = {
    "gradient_decay": ("Gradient against distance", _gradient),
    "costs": ("Memory kept for the backward pass", _memory),
    "rank": ("Singular values of the operator's span", _spectrum),
}
