"""What every committed table says about where it was measured."""

from __future__ import annotations

import datetime

from zoo import __main__ as command


def describe_machine() -> str:
    """Processor, cores, Python, torch and date in one phrase."""
    return f"{command.describe_machine()}, {datetime.datetime.now(datetime.UTC).date()}"
