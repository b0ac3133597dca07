"""Torch's global generators at a seed, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Run with torch's global generators at a seed: the CPU's, and those of devices in use.

    The CPU's and CUDA's are restored afterwards.
    """
    in_use = torch.cuda.is_initialized() if torch.cuda.is_available() else torch.accelerator.is_available()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        # torch.manual_seed formats the stack for each kind of device that is not in use: milliseconds.
        seed_all = torch.manual_seed if in_use else torch.default_generator.manual_seed
        seed_all(seed)
        yield
