"""The property `gradients`: the backward pass gives the derivative of the forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.check.calls import finest
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, real, root_mean_square
from zoo.check.property import checks
from zoo.check.subject import Subject

_LENGTH = 130
"""Sequence length: more than two chunks of 64, so that gradients between chunks matter."""


class Step(NamedTuple):
    size: float  # step of the finite difference, relative to the tensor
    error: float  # allowed error, relative to the derivative
    rounding: float  # roundoff of a sum of the outputs, relative to their norm


STEPS = {
    torch.float64: (Step(1e-7, 1e-4, 7e-15), Step(1e-4, 1e-2, 1e-6)),
    torch.float32: (Step(1e-2, 5e-2, 4e-6), Step(1e-4, 1e-2, 1e-6)),
}
"""Two steps for each dtype of a module. If their differences disagree, the second step decides: the first one met
discontinuities, from hard choices or from roundoff in a part that computes in float32."""


@checks("calls")
def gradients(subject: Subject) -> Outcomes:
    """Check that gradients of input and parameters agree with central differences along random directions.

    We check float64, if the module supports it, and float32, for which kernels are written. The property
    `stream_gradients` compares gradients through states with gradients of the whole sequence.
    """
    dtype = finest(subject)
    if dtype not in STEPS:
        raise NotApplicableError(f"finite differences are too inexact in {dtype}")
    for each in dict.fromkeys((dtype, torch.float32)):
        yield from _derivatives(subject, each)


def _derivatives(subject: Subject, dtype: torch.dtype) -> Outcomes:
    """Compare derivatives with finite differences in a dtype."""
    module, (first, further) = subject.module(dtype), STEPS[dtype]
    x = subject.draw(seq_len=_LENGTH if subject.takes(_LENGTH) else None, dtype=dtype).requires_grad_()
    y = subject.whole(module, x)
    if not y.requires_grad:
        raise NotApplicableError("the output has no gradient")
    weights = subject.weights(y)
    tensors = {"the input": x, **subject.trained(module)}
    found = torch.autograd.grad((y * weights).sum(), [*tensors.values()], allow_unused=True, materialize_grads=True)

    def moved(t: Tensor, by: Tensor) -> float:
        before = t.detach().clone()
        with torch.no_grad():
            t += by
            value = (subject.outputs(module, x) * weights).sum(dtype=torch.float64)
            t.copy_(before)
        return float(value)

    weighted = (y * weights).detach().double()

    def measured(t: Tensor, direction: Tensor, derivative: float, step: Step) -> tuple[float, float, float]:
        """Return the central difference, half the gap between the one-sided ones, and the allowed error."""
        by, here = step.size * direction, float(weighted.sum())
        ahead, behind = (moved(t, by) - here) / step.size, (here - moved(t, -by)) / step.size
        difference = (ahead + behind) / 2
        allowed = step.error * max(abs(difference), abs(derivative))
        return difference, abs(ahead - behind) / 2, allowed + step.rounding * float(weighted.norm()) / step.size

    for seed, (name, t) in enumerate(tensors.items()):
        direction = subject.normal(real(t).shape, seed=10 + seed).to(real(t)) * max(root_mean_square(t), 1e-3)
        derivative = float((real(found[seed]).double() * direction.double()).sum())
        if t.is_complex():
            direction = torch.view_as_complex(direction)
        difference, _, allowed = measured(t, direction, derivative, first)
        if abs(difference - derivative) > allowed:
            again, apart, bound = measured(t, direction, derivative, further)
            if abs(again - difference) > allowed:
                difference, allowed = again, bound + apart
        yield Outcome(
            abs(difference - derivative) <= allowed,
            f"derivative along a random direction of {name} in {dtype}",
            f"{derivative:.5g} by the backward pass, {difference:.5g} by a finite difference",
            f"equal up to {allowed:.1g}",
        )
