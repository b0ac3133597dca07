"""Tolerances by dtype, for all comparisons. A test that needs a looser one has found a bug."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor


class Tolerance(TypedDict):
    rtol: float
    atol: float


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},  # a few roundings in a row, 2^-8 each
}


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Keyword arguments rtol and atol for this dtype, as torch's and NumPy's comparisons accept them."""
    return TOLERANCES[dtype]


def assert_close(actual: Tensor | Iterable[Tensor], expected: Tensor | np.ndarray | Iterable[Any]) -> None:
    """Assert equal shapes and close values, to the tolerance of `actual`'s dtype; several tensors are compared in turn.

    `expected` may be a tensor of a wider dtype or a NumPy array. NaN equals nothing.
    """
    if not isinstance(actual, Tensor):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
        return
    expected = torch.as_tensor(expected).to(actual)
    torch.testing.assert_close(actual, expected, **tolerance(actual.dtype))
