"""Torch's global generators at a seed, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Run with torch's global generators at a seed: the CPU's, and those of CUDA devices if CUDA is in use.

    They are restored afterwards.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed formats the stack for every kind of device that is not in use: milliseconds.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
