"""The property of gradients: a backward pass, written by hand or not, gives the derivative of the forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.check.calls import finest
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, real, root_mean_square
from zoo.check.property import checks
from zoo.check.subject import Subject

_LENGTH = 130
"""Positions, more than two chunks of 64: what a chunk passes to the one before it counts."""


class Step(NamedTuple):
    size: float  # of the difference, relative to the tensor
    error: float  # that is allowed, relative to the derivative
    rounding: float  # of a sum of the outputs, relative to their norm


STEPS = {
    torch.float64: (Step(1e-7, 1e-4, 7e-15), Step(1e-4, 1e-2, 1e-6)),
    torch.float32: (Step(1e-2, 5e-2, 4e-6), Step(1e-4, 1e-2, 1e-6)),
}
"""By the dtype that a module computes in. The second step decides if the two disagree: then the first meets jumps, of a
hard choice or of the roundings in a part that computes in float32."""


@checks("calls")
def gradients(subject: Subject) -> Outcomes:
    """Check that the gradients of input and parameters are derivatives, by central differences along random directions.

    In float64, if the module computes in it, and in float32, for which kernels are written. Through states they are
    those of the whole sequence, by the property `stream_gradients`.
    """
    dtype = finest(subject)
    if dtype not in STEPS:
        raise NotApplicableError(f"differences tell nothing in {dtype}")
    for each in dict.fromkeys((dtype, torch.float32)):
        yield from _derivatives(subject, each)


def _derivatives(subject: Subject, dtype: torch.dtype) -> Outcomes:
    """Compare derivatives with differences, in a dtype."""
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

    def told(t: Tensor, direction: Tensor, derivative: float, step: Step) -> tuple[float, float, float]:
        """Return the difference, how far its two sides are from it, and the error that roundoff explains."""
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
        difference, _, allowed = told(t, direction, derivative, first)
        if abs(difference - derivative) > allowed:
            again, apart, bound = told(t, direction, derivative, further)
            if abs(again - difference) > allowed:
                difference, allowed = again, bound + apart
        yield Outcome(
            abs(difference - derivative) <= allowed,
            f"the derivative along a random direction of {name} was taken in {dtype}",
            f"{derivative:.5g} by the backward pass, {difference:.5g} by a difference",
            f"equal up to {allowed:.1g}",
        )
