"""The cached shape checker of tests.shapes accepts right calls and refuses wrong ones, cached or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests import shapes
from zoo.ops.activation import silu_gate

Function = Callable[..., Tensor]


@pytest.fixture
def scaled() -> Function:
    """A checked function whose result has the wrong shape if the factor is 3."""

    @shapes.jaxtyped(typechecker=shapes.checked)
    def scaled(x: Float[Tensor, "batch width"], factor: float = 2.0) -> Float[Tensor, "batch width"]:
        return x[:, 1:] if factor == 3 else factor * x

    return scaled


@pytest.mark.parametrize("wrong", [torch.ones(2), torch.ones(2, 3, dtype=torch.int64), None, [1.0]])
def test_a_wrong_argument_or_result_is_refused_after_any_calls(scaled: Function, wrong: Any) -> None:
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
            scaled(wrong)
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            scaled(torch.ones(2, 3), 3.0)
        assert torch.equal(scaled(torch.ones(2, 3), 5.0), torch.full((2, 3), 5.0))


def test_functions_of_zoo_are_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        silu_gate(torch.ones(2, 3), torch.ones(3))  # torch would broadcast
