"""Where reduced precision must not reach: recurrences accumulate in at least float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off on `device`, where there is such a thing."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
