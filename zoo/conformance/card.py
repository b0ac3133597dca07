"""The report as a card on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zoo.conformance.catalogue import properties
from zoo.conformance.finding import Report

_WIDTH = 140  # in a file or a pipe
MARKS = {"passed": "[green]✓[/]", "failed": "[bold red]✗[/]", "not_applicable": "[dim]–[/]"}


def print_card(report: Report, console: Console | None = None) -> None:
    """Print verdicts by subject, then every failure with the lines that reproduce it."""
    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=_WIDTH)
    subjects = {each.name: each.subject for each in properties()}
    setting = ", ".join(f"{name} {value}" for name, value in report.setting.items() if value not in ({}, None))
    console.print(f"[bold]{escape(report.target)}[/]  {escape(setting)}", highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("subject", style="dim", no_wrap=True)
    table.add_column("mark", no_wrap=True)
    table.add_column("property", no_wrap=True)
    table.add_column("detail", overflow="fold")
    before = ""
    for finding in report.findings:
        subject = subjects[finding.property]
        table.add_row(
            subject if subject != before else "", MARKS[finding.verdict], finding.property, escape(finding.detail)
        )
        before = subject
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
