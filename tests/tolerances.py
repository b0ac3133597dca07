"""The one table of tolerances. A test that needs a looser number has found something; it does not get its own."""

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
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},  # 8 bits of mantissa: 2^-8 a rounding, a few of them in a row
}


def tolerance(dtype: torch.dtype) -> Tolerance:
    """The table's line for `dtype`, as keywords for the `assert_close` of torch, NumPy and this file."""
    return TOLERANCES[dtype]


def assert_close(actual: Tensor | Iterable[Tensor], expected: Tensor | np.ndarray | Iterable[Any]) -> None:
    """Assert equal shapes and equal values, to the tolerance of `actual`'s dtype; of several tensors one by one.

    `expected` may be a reference in another (wider) dtype, or a NumPy array; NaN equals nothing.
    """
    if not isinstance(actual, Tensor):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
        return
    expected = torch.as_tensor(expected).to(actual)
    torch.testing.assert_close(actual, expected, **tolerance(actual.dtype))
