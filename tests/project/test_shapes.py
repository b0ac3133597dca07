"""The checker of shapes can fail, and remembers calls without excusing others."""

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
    """A checked function that keeps its promise unless the factor is 3."""

    @shapes.jaxtyped(typechecker=shapes.checked)
    def scaled(x: Float[Tensor, "batch width"], factor: float = 2.0) -> Float[Tensor, "batch width"]:
        return x[:, 1:] if factor == 3 else factor * x

    return scaled


@pytest.mark.parametrize("wrong", [torch.ones(2), torch.ones(2, 3, dtype=torch.int64), None, [1.0]])
def test_an_argument_of_another_kind_is_refused_before_and_after_a_good_one(scaled: Function, wrong: Any) -> None:
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match="parameters"):
            scaled(wrong)
        assert scaled(torch.ones(2, 3)).shape == (2, 3)


def test_a_result_that_is_not_as_promised_is_refused_whatever_was_seen_before(scaled: Function) -> None:
    x = torch.ones(2, 3)
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            scaled(x, 3.0)
        assert torch.equal(scaled(x, 5.0), 5 * x)


def test_what_zoo_computes_is_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        silu_gate(torch.ones(2, 3), torch.ones(3))  # torch would broadcast
