"""The line in every committed table about the machine that it was measured on."""

from __future__ import annotations

import datetime

from zoo.report import machine


def describe_machine() -> str:
    """Return processor, cores, Python, torch and date in one phrase."""
    return f"{machine.describe_machine()}, {datetime.datetime.now(datetime.UTC).date()}"
