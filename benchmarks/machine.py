"""What every committed table says about where it was measured."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """Processor, cores, Python, torch and date in one phrase."""
    cpu = platform.processor() or "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{cpu}, {cores} cores, Python {platform.python_version()}, torch {version('torch')}, {today}"


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name, then rename: a reader never sees half a file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
