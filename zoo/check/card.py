"""Print the report as a card on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from zoo.check.catalogue import properties
from zoo.check.finding import Report
from zoo.report.terminal import make_console, make_table

MARKS = {"passed": "[green]✓[/]", "failed": "[bold red]✗[/]", "not_applicable": "[dim]–[/]"}


def print_card(report: Report, console: Console | None = None) -> None:
    """Print verdicts by subject, then every failure with the lines that reproduce it."""
    console = console or make_console()
    subjects = {each.name: each.subject for each in properties()}
    setting = ", ".join(f"{name} {value}" for name, value in report.setting.items() if value not in ({}, None))
    console.print(f"[bold]{escape(report.target)}[/]  {escape(setting)}", highlight=False)
    rows, before = [], ""
    for finding in report.findings:
        subject = subjects[finding.property]
        mark = Text.from_markup(MARKS[finding.verdict])
        rows.append((Text("" if subject == before else subject, "dim"), mark, finding.property, finding.detail))
        before = subject
    table = make_table(("", "", "", ""), rows)
    for column in table.columns[:3]:
        column.no_wrap = True
    console.print(table, highlight=False)
    for finding in report.failed:
        console.print(f"[bold red]✗ {finding.property}[/]: {escape(finding.detail)}", highlight=False)
        if finding.reproduce:
            console.print(
                "".join(f"    {line}\n" for line in finding.reproduce.splitlines()), markup=False, soft_wrap=True
            )
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in MARKS}
    console.print(
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['not_applicable']} not applicable",
        highlight=False,
    )
