"""The outcome of one trial of a property, and the comparisons that decide it: equal up to roundoff, or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from zoo.errors import raised_at


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial.

    Attributes:
        passed: whether the result is the expected one.
        did: what was done to the module.
        found: the result, with its size.
        expected: the result that a right module gives, with the error that is allowed.
        measured: the numbers behind it, as plain data.
    """

    passed: bool
    did: str
    found: str
    expected: str
    measured: Mapping[str, Any] = field(default_factory=dict)


Outcomes: TypeAlias = Iterator[Outcome]
"""The trials of a property, one after the other."""


class NotApplicableError(Exception):
    """A property does not apply to this module; the message gives the reason in one line."""


class FailedError(Exception):
    """An outcome that ends a property early."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.found)
        self.outcome = outcome


@contextmanager
def attempting(did: str, expected: str) -> Iterator[None]:
    """Turn any exception of the block into a failed outcome: a foreign module may raise anything."""
    try:
        yield
    except NotApplicableError:
        raise
    except Exception as error:
        raise FailedError(Outcome(False, did, describe_error(error), expected)) from error


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line of limited length, with the place where the user's own code raised it."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}{raised_at(error)}"


class Tolerance(NamedTuple):
    rtol: float  # relative to each number
    atol: float  # relative to the root mean square of all numbers


TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-11),
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.bfloat16: Tolerance(3e-2, 3e-2),
    torch.float16: Tolerance(1e-2, 1e-2),
}
"""Roundoff of a layer, a few steps in a row. The bugs that people report are hundreds of times larger."""


def equal(did: str, actual: Tensor, expected: Tensor, **measured: Any) -> Outcome:
    """Return an outcome that passes if the two tensors agree up to `TOLERANCES`."""
    if actual.shape != expected.shape:
        return Outcome(False, did, f"shape {tuple(actual.shape)}", f"{tuple(expected.shape)}", measured)
    actual, expected = real(actual), real(expected)
    bad = int((~actual.isfinite()).sum())
    difference = float((actual.double() - expected.double()).abs().max()) if actual.numel() else 0.0
    size = f"numbers of size {root_mean_square(expected):.2g}"
    if bad:
        found = f"{bad} of {actual.numel()} numbers are NaN or infinite"
    else:
        found = f"they differ by up to {difference:.2g}, {size}" if difference else f"equal, {size}"
    rtol, atol = TOLERANCES[actual.dtype]
    allowed = f"equal up to {rtol:g} of each number and {atol:g} of their size"
    return Outcome(miss(actual, expected) <= 1, did, found, allowed, measured)


def miss(actual: Tensor, expected: Tensor) -> float:
    """Return the largest |actual - expected| over the allowed error: at most 1 if they agree, infinite for NaN.

    Raises:
        ValueError: tensors of different shapes.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() == 0:
        return 0.0
    actual, expected = real(actual), real(expected)
    tolerance = max(TOLERANCES[actual.dtype], TOLERANCES[expected.dtype])  # the coarser one
    actual, expected = actual.double(), expected.double()
    if not actual.isfinite().all() or not expected.isfinite().all():
        return float("inf")
    size = root_mean_square(expected)
    allowed = tolerance.rtol * expected.abs() + max(tolerance.atol * size, torch.finfo(torch.float64).tiny)
    return float(((actual - expected).abs() / allowed).max())


def real(t: Tensor) -> Tensor:
    """Return a tensor without its graph; of a complex one real and imaginary parts, along a further axis."""
    return torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()


def root_mean_square(t: Tensor) -> float:
    """Return the root mean square of a tensor."""
    return float(real(t).double().square().mean().sqrt()) if t.numel() else 0.0


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected|, in norm; infinite for NaN."""
    actual, expected = actual.detach().double(), expected.detach().double()
    error = float((actual - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float64).tiny))
    return error if error == error else float("inf")
