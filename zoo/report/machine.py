"""Describe the machine of a measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine(device: str = "cpu") -> str:
    """Describe processor (or GPU), cores and versions in one phrase."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    named = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else _processor()
    return f"{named}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
