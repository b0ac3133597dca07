"""`coefficient` passes its input through, records it, or replays a recorded one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.cases import draw
from tests.tolerances import assert_close
from zoo.coefficient import coefficient, recording, replaying


def test_recording_keeps_and_replaying_returns_coefficients_in_order(generator: torch.Generator) -> None:
    first, second, other = (draw(3, generator=generator).requires_grad_() for _ in range(3))
    assert coefficient(first) is first
    with recording() as tape:
        assert coefficient(first) is first
        coefficient(second)
    assert not any(kept.requires_grad for kept in tape.kept)
    for _ in range(2):  # a tape can be replayed again
        with replaying(tape):
            assert torch.equal(coefficient(other), first)
            assert torch.equal(coefficient(other), second)
    assert coefficient(other) is other


def test_a_replayed_gate_is_linear_and_its_gradient_is_the_coefficient(generator: torch.Generator) -> None:
    def gate(x: Tensor) -> Tensor:
        return coefficient(torch.sigmoid(x)) * x

    x, other = draw(4, generator=generator), draw(4, generator=generator).requires_grad_()
    with recording() as tape:
        gate(x)
    with replaying(tape):
        y = gate(other)
    assert_close(y, torch.sigmoid(x) * other)
    assert_close(torch.autograd.grad(y.sum(), other)[0], torch.sigmoid(x))


@pytest.mark.parametrize("inner", ["recording", "replaying"])
@pytest.mark.parametrize("outer", ["recording", "replaying"])
def test_modes_do_not_nest(outer: str, inner: str) -> None:
    with recording() as tape:
        pass
    modes = {"recording": recording, "replaying": lambda: replaying(tape)}
    with modes[outer](), pytest.raises(RuntimeError, match="nest"), modes[inner]():
        pass


def test_replaying_other_numbers_or_shapes_of_coefficients_is_refused() -> None:
    with recording() as tape:
        coefficient(torch.ones(2))
    with replaying(tape):
        coefficient(torch.ones(2))
        with pytest.raises(RuntimeError, match="more coefficients than the 1"):
            coefficient(torch.ones(2))
    with pytest.raises(RuntimeError, match="met 0 coefficients, 1"), replaying(tape):
        pass
    with pytest.raises(RuntimeError, match=r"shape \(3,\), recorded \(2,\)"), replaying(tape):
        coefficient(torch.ones(3))


def test_an_error_inside_ends_the_mode() -> None:
    def interrupted(t: Tensor) -> None:
        coefficient(t)
        raise InterruptedError

    x = torch.ones(2)
    with pytest.raises(InterruptedError), recording() as tape:
        interrupted(torch.zeros(2))
    with pytest.raises(InterruptedError), replaying(tape):
        interrupted(x)
    assert coefficient(x) is x
    with recording() as other:
        coefficient(x)
    assert torch.equal(other.kept[0], x)
