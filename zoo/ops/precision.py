"""Types of tensors, and blocks without reduced precision: recurrences need at least float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor

DType: TypeAlias = torch.dtype | None
Device: TypeAlias = torch.device | str | None

_NO_CHANGE = nullcontext()  # to make one takes half a microsecond, in every op of every decoding step


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off on `device`, where it is on: switching takes as long as an operation on one position."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return _NO_CHANGE


def as_type(dtype: torch.dtype, t: Tensor) -> Tensor:
    """`t.to(dtype)`, which takes a microsecond to do nothing: too long for one position."""
    return t if t.dtype == dtype else t.to(dtype)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating type that `device` computes in: float64, on Apple's GPUs float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def linear_dtype(t: Tensor) -> torch.dtype:
    """Return the type in which a linear map of `t` computes: autocast's own where that is switched on."""
    kind = t.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return t.dtype


def accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which a recurrence accumulates for activations of `dtype`: at least float32."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def complex_accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """`accumulator` for complex states; a table, since torch.compile does not trace `dtype.to_complex`."""
    return {torch.float32: torch.complex64, torch.float64: torch.complex128}[accumulator(dtype)]
