"""Outcomes of the tests of a property, and comparisons up to roundoff."""

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
    """The outcome of one test of a property.

    Attributes:
        passed: whether the result is as expected.
        did: the test.
        found: the result.
        expected: the expected result, with the allowed error.
        measured: the measured numbers, as plain data.
    """

    passed: bool
    did: str
    found: str
    expected: str
    measured: Mapping[str, Any] = field(default_factory=dict)


Outcomes: TypeAlias = Iterator[Outcome]
"""The tests of a property, in order."""


class NotApplicableError(Exception):
    """A property does not apply to this module; the message is the reason, in one line."""


class FailedError(Exception):
    """A failed outcome, after which the remaining tests of the property are skipped."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.found)
        self.outcome = outcome


@contextmanager
def attempting(did: str, expected: str) -> Iterator[None]:
    """Turn any exception in the block into a failed outcome."""
    try:
        yield
    except NotApplicableError:
        raise
    except Exception as error:
        raise FailedError(Outcome(False, did, describe_error(error), expected)) from error


def describe_error(error: BaseException) -> str:
    """Describe an exception in one short line, with the place in the user's code that raised it."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}{raised_at(error)}"


class Tolerance(NamedTuple):
    rtol: float  # relative to each entry
    atol: float  # relative to the root mean square of all entries


TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-11),
    torch.float32: Tolerance(1e-4, 1e-4),
    torch.bfloat16: Tolerance(3e-2, 3e-2),
    torch.float16: Tolerance(1e-2, 1e-2),
}
"""Tolerances for the roundoff of a layer. Bugs in published issues are hundreds of times larger."""


def equal(did: str, actual: Tensor, expected: Tensor, **measured: Any) -> Outcome:
    """Return an outcome that passes if the two tensors agree up to `TOLERANCES`."""
    if actual.shape != expected.shape:
        return Outcome(False, did, f"shape {tuple(actual.shape)}", f"{tuple(expected.shape)}", measured)
    actual, expected = real(actual), real(expected)
    bad = int((~actual.isfinite()).sum())
    difference = float((actual.double() - expected.double()).abs().max()) if actual.numel() else 0.0
    size = f"RMS {root_mean_square(expected):.2g}"
    if bad:
        found = f"{bad} of {actual.numel()} entries are NaN or infinite"
    else:
        found = f"largest difference {difference:.2g}, {size}" if difference else f"equal, {size}"
    rtol, atol = TOLERANCES[actual.dtype]
    allowed = f"equal up to {rtol:g} of each entry plus {atol:g} of the RMS"
    return Outcome(miss(actual, expected) <= 1, did, found, allowed, measured)


def miss(actual: Tensor, expected: Tensor) -> float:
    """Return the largest ratio of |actual - expected| and the allowed error: <= 1 if they agree, infinite for NaN.

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
    """Detach a tensor; split a complex one into real and imaginary parts along a new last axis."""
    return torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()


def root_mean_square(t: Tensor) -> float:
    """Return the root mean square of a tensor."""
    return float(real(t).double().square().mean().sqrt()) if t.numel() else 0.0


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected| in the Euclidean norm; infinite for NaN."""
    actual, expected = actual.detach().double(), expected.detach().double()
    error = float((actual - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float64).tiny))
    return error if error == error else float("inf")
