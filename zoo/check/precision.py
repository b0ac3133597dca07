"""Properties of precision: dtypes and autocast agree as far as they can; large and tiny inputs stay finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.check.outcome import TOLERANCES, Outcome, Outcomes, attempting, relative_error
from zoo.check.property import checks
from zoo.check.subject import Subject

_LENGTH = 63
_FINITE = "finite outputs and gradients"


@checks("precision")
def float64(subject: Subject) -> Outcomes:
    """Check that float64 input gives float64 output."""
    return _in_dtype(subject, torch.float64)


@checks("precision")
def float32(subject: Subject) -> Outcomes:
    """Check that float32 gives finite outputs and gradients, near float64."""
    return _in_dtype(subject, torch.float32)


@checks("precision")
def bfloat16(subject: Subject) -> Outcomes:
    """Check that bfloat16 gives finite outputs and gradients, near float64, also in chunks."""
    return _in_dtype(subject, torch.bfloat16)


def _in_dtype(subject: Subject, dtype: torch.dtype) -> Outcomes:
    """Compare the module in a dtype with the float64 result of the same rounded parameters."""
    did = f"module and input were converted to {dtype}"
    module, x = subject.module(dtype), subject.draw(seq_len=_LENGTH, dtype=dtype).requires_grad_()
    with attempting(did, f"outputs in {dtype}"):
        y = subject.whole(module, x)
    yield Outcome(y.dtype == dtype, did, f"outputs in {y.dtype}", f"outputs in {dtype}")
    with attempting(f"{did}; a backward pass", "gradients"):
        broken = _not_finite(y, module, x)
    yield Outcome(not broken, did, broken or _FINITE, _FINITE)
    outputs = [y]
    if dtype == torch.bfloat16 and subject.protocol.streams:
        sizes = [1] * _LENGTH if subject.protocol.longest == 1 else [1, 20, _LENGTH - 21]
        with attempting(f"{did}, and the input streamed", f"outputs in {dtype}"), torch.no_grad():
            outputs.append(subject.chunks(module, x.detach(), sizes))
    try:
        wide = subject.outputs(module.double(), x.detach().double())
    except Exception:  # noqa: BLE001 - the property float64 reports it; here there is nothing to compare with
        return
    yield _near(did, "float64", max(relative_error(each, wide) for each in outputs), TOLERANCES[dtype].rtol)


@checks("precision")
def autocast(subject: Subject) -> Outcomes:
    """Check that under autocast to bfloat16 a float32 module stays finite and near its float32 outputs."""
    did = "a float32 module ran under autocast to bfloat16"
    module, x = subject.module(torch.float32), subject.draw(seq_len=_LENGTH, dtype=torch.float32).requires_grad_()
    expected = subject.outputs(module, x)
    with attempting(did, "outputs and gradients"):
        with torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
            y = subject.whole(module, x)
        broken = _not_finite(y, module, x)
    yield Outcome(not broken, did, broken or _FINITE, _FINITE)
    yield _near(did, "float32", relative_error(y, expected), TOLERANCES[torch.bfloat16].rtol)


def _near(did: str, reference: str, error: float, most: float) -> Outcome:
    found = f"{error:.1e} of the norm away from {reference}"
    return Outcome(error <= most, did, found, f"at most {most:g}", {"relative_error": error})


@checks("precision")
def large_inputs(subject: Subject) -> Outcomes:
    """Check that outputs and gradients stay finite for inputs of size 30 and 1000."""
    return _finite(subject, (30.0, 1000.0))


@checks("precision")
def tiny_inputs(subject: Subject) -> Outcomes:
    """Check that outputs and gradients stay finite for inputs of size 1e-6 and 0."""
    return _finite(subject, (1e-6, 0.0))


def _finite(subject: Subject, sizes: tuple[float, ...]) -> Outcomes:
    for size in sizes:
        did = f"inputs of size {size:g} went through, and their gradients back"
        module, x = subject.module(), (size * subject.draw(seq_len=_LENGTH)).requires_grad_()
        with attempting(did, _FINITE):
            broken = _not_finite(subject.whole(module, x), module, x)
        yield Outcome(not broken, did, broken or "all finite", _FINITE)


def _not_finite(y: Tensor, module: nn.Module, x: Tensor) -> str:
    """Name the tensors that are not finite: the outputs, or gradients; empty if all are finite."""
    broken = []
    if not y.isfinite().all():
        broken = ["the outputs"]
    elif y.requires_grad:
        named = {"x": x, **{name: p for name, p in module.named_parameters() if p.requires_grad}}
        found = torch.autograd.grad(y.float().square().mean(), list(named.values()), allow_unused=True)
        broken = [
            f"the gradient of {name}"
            for name, g in zip(named, found, strict=True)
            if g is not None and not g.isfinite().all()
        ]
    return f"NaN or infinity in {', '.join(broken)}" if broken else ""
