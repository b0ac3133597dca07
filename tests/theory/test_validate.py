"""`require_real` accepts real, finite tensors with the right number of axes, and refuses others in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import refused
from zoo.validate import require_real


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "got list"),
        (torch.ones(2, 2, 2), r"got torch.float32 \(2, 2, 2\)"),
        (torch.ones(2, 0), "not empty"),
        (torch.ones(2, 2, dtype=torch.complex64), "float32 or float64.* got torch.complex64"),
        (torch.ones(2, 2, dtype=torch.bfloat16), "got torch.bfloat16"),
        (torch.ones(2, 2, dtype=torch.int64), "got torch.int64"),
        (torch.tensor([[0.0, torch.inf]]), "finite"),
        (torch.tensor([[0.0, torch.nan]]), "finite"),
    ],
)
def test_anything_but_a_finite_real_tensor_is_refused(value: Any, message: str) -> None:
    require_real("x", torch.zeros(1, 2), "(a, b)", (2,))
    with refused(f"^x must be .*{message}"):
        require_real("x", value, "(a, b)", (2,))
