"""Decide whether two tensors are equal up to roundoff, and say by how much they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.check.finding import Observation


class Tolerance(NamedTuple):
    rtol: float  # of each number
    atol: float  # of the root mean square of all of them


TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-11),
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.bfloat16: Tolerance(3e-2, 3e-2),
    torch.float16: Tolerance(1e-2, 1e-2),
}
"""Roundoff of a layer, some steps of it in a row; what people write down as bugs is hundreds of times larger."""


def miss(actual: Tensor, expected: Tensor) -> float:
    """Return the largest |actual - expected| over what is allowed: at most 1 where they agree, infinite for NaN.

    Raises:
        ValueError: tensors of different shapes.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() == 0:
        return 0.0
    tolerance = max(TOLERANCES[actual.dtype], TOLERANCES[expected.dtype])  # the coarser one
    actual, expected = actual.detach().double(), expected.detach().double()
    if not actual.isfinite().all() or not expected.isfinite().all():
        return float("inf")
    size = root_mean_square(expected)
    allowed = tolerance.rtol * expected.abs() + max(tolerance.atol * size, torch.finfo(torch.float64).tiny)
    return float(((actual - expected).abs() / allowed).max())


def describe_miss(actual: Tensor, expected: Tensor) -> str:
    """Say in one phrase how far apart they are."""
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    bad = int((~actual.isfinite()).sum())
    if bad:
        return f"{bad} of {actual.numel()} numbers are NaN or infinite"
    difference = float((actual.double() - expected.double()).abs().max())
    if difference == 0:
        return f"equal, numbers of size {root_mean_square(expected.double()):.2g}"
    return f"they differ by up to {difference:.2g}, numbers of size {root_mean_square(expected.double()):.2g}"


def root_mean_square(t: Tensor) -> float:
    """Return the root mean square of a tensor."""
    return float(t.detach().double().square().mean().sqrt()) if t.numel() else 0.0


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected|, in norm; infinite for NaN."""
    actual, expected = actual.detach().double(), expected.detach().double()
    error = float((actual - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float64).tiny))
    return error if error == error else float("inf")


def allowed(dtype: torch.dtype) -> str:
    """Say in words what `miss` allows."""
    tolerance = TOLERANCES[dtype]
    return f"equal up to {tolerance.rtol:g} of each number and {tolerance.atol:g} of their size"


PRINT_DIFFERENCE = (
    'print("differ by", (a - b).abs().max().item(), "in numbers of size", b.square().mean().sqrt().item())'
)
"""The last line of what reproduces a comparison of a with b."""


def compared(did: str, actual: Tensor, expected: Tensor, lines: Sequence[str], **measured: Any) -> Observation:
    """Return an observation that passes if the two agree; `lines` make the `a` and `b` that are compared."""
    if actual.shape != expected.shape:
        found, lines = f"shape {tuple(actual.shape)}", [*lines, "print(a.shape, b.shape)"]
        return Observation(False, did, found, f"{tuple(expected.shape)}", lines, measured)
    return Observation(
        miss(actual, expected) <= 1,
        did,
        describe_miss(actual.detach(), expected.detach()),
        allowed(actual.dtype),
        [*lines, PRINT_DIFFERENCE],
        measured,
    )


def first_failure(observations: Iterable[Observation]) -> Observation:
    """Return the first observation that failed; the last if all passed."""
    last: Observation | None = None
    for last in observations:
        if not last.passed:
            break
    assert last is not None
    return last
