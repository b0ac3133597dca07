"""Seed torch's global generators within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed torch's global generators, of the CPU and of devices in use, within the block.

    The generators of the CPU and of CUDA are restored afterwards.
    """
    in_use = torch.cuda.is_initialized() if torch.cuda.is_available() else torch.accelerator.is_available()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        # torch.manual_seed takes milliseconds: it formats the stack for each kind of device that is not in use.
        seed_all = torch.manual_seed if in_use else torch.default_generator.manual_seed
        seed_all(seed)
        yield
