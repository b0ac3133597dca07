"""Check that float64, float32, bfloat16 and autocast agree as far as they can; large and tiny inputs stay finite."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from zoo.check.comparison import TOLERANCES, first_failure, relative_error
from zoo.check.finding import Observation, attempting
from zoo.check.subject import Subject

_LENGTH = 63
_LARGE, _TINY = 1e3, 1e-6


def _in_dtype(subject: Subject, dtype: torch.dtype) -> Observation:
    """Check that the module in a dtype returns that dtype, near the float64 result of the same rounded parameters."""
    did = f"module and input were converted to {dtype}"
    lines = [
        f"module = module.to({dtype})",
        f"x = draw(2, {_LENGTH}, {subject.d_model}, dtype={dtype})",
        f"a = {subject.adapter.whole_line}",
        "module, x = module.double(), x.double()",
        f"b = {subject.adapter.whole_line}",
        "print(a.dtype, float((a.double() - b).norm() / b.norm()))",
    ]
    module = subject.module(dtype)
    x = subject.draw(seq_len=_LENGTH, dtype=dtype).requires_grad_()
    with attempting(did, f"outputs in {dtype}", lines):
        y = subject.whole(module, x)
    if y.dtype != dtype:
        return Observation(False, did, f"outputs in {y.dtype}", f"outputs in {dtype}", lines)
    with attempting(f"{did}; a backward pass", "gradients", lines):
        broken = _broken_gradients(y, module, x)
    if broken:
        return Observation(False, did, f"NaN or infinity in {', '.join(broken)}", "finite outputs and gradients", lines)
    streamed = y
    if dtype == torch.bfloat16 and subject.adapter.streams:
        sizes = [1] * _LENGTH if subject.adapter.longest == 1 else [1, 20, _LENGTH - 21]
        with attempting(f"{did}, and the input streamed", f"outputs in {dtype}", lines), torch.no_grad():
            streamed = subject.chunks(module, x.detach(), sizes)
    return _near(subject, did, (y, streamed), module, x.detach(), lines)


def _near(
    subject: Subject, did: str, outputs: tuple[Tensor, ...], module: nn.Module, x: Tensor, lines: list[str]
) -> Observation:
    try:
        with torch.no_grad():
            wide = subject.whole(module.double(), x.double())
    except Exception:  # noqa: BLE001 - `float64` says so; here there is nothing to compare with
        return Observation(True, did, "finite outputs and gradients", "finite outputs and gradients", lines)
    error, most = max(relative_error(y, wide) for y in outputs), TOLERANCES[outputs[0].dtype].rtol
    found = f"{error:.1e} of the norm away from float64"
    return Observation(error <= most, did, found, f"at most {most:g}", lines, {"relative_error": error})


float64 = functools.partial(_in_dtype, dtype=torch.float64)
float32 = functools.partial(_in_dtype, dtype=torch.float32)
bfloat16 = functools.partial(_in_dtype, dtype=torch.bfloat16)


def autocast(subject: Subject) -> Observation:
    """Check that under autocast to bfloat16 a float32 module stays finite and near its float32 outputs."""
    did = "a float32 module ran under autocast to bfloat16"
    kind = torch.device(subject.device).type
    lines = [
        "module = module.float()",
        f"x = draw(2, {_LENGTH}, {subject.d_model}, dtype=torch.float32)",
        f"b = {subject.adapter.whole_line}",
        f'with torch.autocast("{kind}", dtype=torch.bfloat16):',
        f"    a = {subject.adapter.whole_line}",
        "print(float((a.double() - b.double()).norm() / b.double().norm()))",
    ]
    module, x = subject.module(torch.float32), subject.draw(seq_len=_LENGTH, dtype=torch.float32).requires_grad_()
    with torch.no_grad():
        expected = subject.whole(module, x)
    with attempting(did, "outputs and gradients", lines):
        with torch.autocast(kind, dtype=torch.bfloat16):
            y = subject.whole(module, x)
        broken = _broken_gradients(y, module, x)
    if broken:
        return Observation(False, did, f"NaN or infinity in {', '.join(broken)}", "finite outputs and gradients", lines)
    error, most = relative_error(y, expected), TOLERANCES[torch.bfloat16].rtol
    return Observation(error <= most, did, f"{error:.1e} of the norm away from float32", f"at most {most:g}", lines)


def _finite(subject: Subject, scales: tuple[float, ...]) -> Observation:
    """Check that for inputs of each size no output or gradient is NaN or infinite."""
    return first_failure(_of_size(subject, scale) for scale in scales)


def _of_size(subject: Subject, scale: float) -> Observation:
    lines = [
        f"x = ({scale:g} * draw(2, {_LENGTH}, {subject.d_model})).requires_grad_()",
        f"y = {subject.adapter.whole_line}",
        "y.float().square().mean().backward()",
        "broken = [n for n, p in module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]",
        'print("finite:", bool(y.isfinite().all()), "not finite gradients:", broken)',
    ]
    did, asked = f"inputs of size {scale:g} went through, and their gradients back", "finite outputs and gradients"
    module, x = subject.module(), (scale * subject.draw(seq_len=_LENGTH)).requires_grad_()
    with attempting(did, asked, lines):
        broken = _broken_gradients(subject.whole(module, x), module, x)
    return Observation(
        not broken, did, f"NaN or infinity in {', '.join(broken)}" if broken else "all finite", asked, lines
    )


large_inputs = functools.partial(_finite, scales=(30.0, _LARGE))
tiny_inputs = functools.partial(_finite, scales=(_TINY, 0.0))


def _broken_gradients(y: Tensor, module: nn.Module, x: Tensor) -> list[str]:
    """Return what is not finite: the outputs, or which gradients."""
    if not y.isfinite().all():
        return ["the outputs"]
    if not y.requires_grad:
        return []
    named = {"x": x, **{name: p for name, p in module.named_parameters() if p.requires_grad}}
    found = torch.autograd.grad(y.float().square().mean(), list(named.values()), allow_unused=True)
    return [
        f"the gradient of {n}" for n, g in zip(named, found, strict=True) if g is not None and not g.isfinite().all()
    ]
