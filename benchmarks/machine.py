"""What every committed table says about where it was measured."""

from __future__ import annotations

import datetime

from zoo.report import machine


def describe_machine() -> str:
    """Processor, cores, Python, torch and date in one phrase."""
    return f"{machine.describe_machine()}, {datetime.datetime.now(datetime.UTC).date()}"
