"""The report as one HTML page that needs no network: verdicts, plots, and the lines of each finding."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from zoo.check.catalogue import properties
from zoo.check.finding import Finding, Report
from zoo.report.plots import as_png, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

MARKS = {"passed": "✓", "failed": "✗", "not_applicable": "–"}


def page(report: Report) -> str:
    """Return the page as text, with its pictures inside.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    subjects = {each.name: each.subject for each in properties()}
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in MARKS}
    setting = ", ".join(f"{name} {value}" for name, value in report.setting.items() if value not in ({}, None))
    rows, before = [], ""
    for finding in report.findings:
        subject = subjects[finding.property]
        rows.append(_row(finding, "" if subject == before else subject))
        before = subject
    figures = "".join(
        f'<figure><img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></figure>'
        for title, picture in _pictures(report)
    )
    title = f"{escape(report.target)} against the contract of a sequence mixer"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>{counts['passed']} passed, {counts['failed']} failed, {counts['not_applicable']} not applicable. "
        f"{escape(setting)}.</p>\n{figures}\n<table>\n{''.join(rows)}</table>\n</body>\n</html>\n"
    )


def _row(finding: Finding, subject: str) -> str:
    lines = ""
    if finding.reproduce:
        shown = " open" if finding.verdict == "failed" else ""
        lines = f"<details{shown}><summary>again</summary><pre>{escape(finding.reproduce)}</pre></details>"
    return (
        f'<tr><td>{escape(subject)}</td><td class="{finding.verdict}">{MARKS[finding.verdict]}</td>'
        f"<td><code>{finding.property}</code></td><td>{escape(finding.detail)}{lines}</td></tr>\n"
    )


def _pictures(report: Report) -> Iterator[tuple[str, bytes]]:
    """Yield a title and a PNG for whatever was measured."""
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
