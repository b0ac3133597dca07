"""Record the environment of a run: commit of the code, versions of libraries, machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "lightning", "numpy", "datasets", "jsonargparse", "tensorboard")


def git(*arguments: str) -> str | None:
    """Return git's output for the repository of this code; None if it fails, as outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """Return the conditions of a result besides its configuration: code, versions, machine."""
    from importlib import metadata  # slow, and not needed for --help

    import torch

    changes = git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": shlex.join(sys.argv),
        "git": git("rev-parse", "HEAD"),
        "git_clean": None if changes is None else not changes,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def machine_of(environment: Mapping[str, Any]) -> str:
    """Return a phrase that describes the machine of an `environment`."""
    gpus = f"{', '.join(sorted(set(environment['gpus'])))}, " if environment["gpus"] else ""
    system = environment["machine"].split("-with-")[0]
    versions = f"Python {environment['python']}, torch {environment['versions']['torch']}"
    return f"{gpus}{environment['cpus']} cores, {system}, {versions}"
