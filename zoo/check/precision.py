"""Properties of precision: results in all dtypes and under autocast agree, and extreme inputs stay finite."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.adapters.states import run, tensors_of
from zoo.check.calls import LONG
from zoo.check.outcome import TOLERANCES, Outcome, Outcomes, attempting, relative_error
from zoo.check.property import checks
from zoo.check.subject import Subject, to_dtype

_LENGTH = 63
_EARLY, _LATE = slice(0, _LENGTH), slice(LONG - _LENGTH, LONG)
_MOVES, _SMOOTH = (1e-4, 1e-5, 1e-5), 0.2
"""Relative perturbations far below the resolution of bfloat16, each along another direction, and the largest share of
an effect that may be non-smooth. One smooth effect suffices: hard choices jump along some directions, rounding along
all."""
_FINITE = "finite outputs and gradients"


@checks("precision")
def float64(subject: Subject) -> Outcomes:
    """Check that float64 input gives float64 output."""
    return _in_dtype(subject, torch.float64)


@checks("precision")
def float32(subject: Subject) -> Outcomes:
    """Check that float32 gives finite outputs and gradients near float64, without narrower dtypes inside."""
    yield from _in_dtype(subject, torch.float32)
    yield _nothing_narrower(subject)
    if subject.protocol.streams:
        with torch.no_grad():
            _, state = run(
                subject.protocol, subject.module(torch.float32), subject.draw(seq_len=3, dtype=torch.float32)
            )
        narrow = {str(t.dtype) for t in tensors_of(state) if t.is_floating_point() and t.dtype.itemsize < 4}
        found = f"the state is {', '.join(sorted(narrow))}" if narrow else "the state is at least float32"
        yield Outcome(not narrow, "a float32 module streamed 3 positions", found, "a state of at least float32")


@checks("precision")
def bfloat16(subject: Subject) -> Outcomes:
    """Check that bfloat16 gives finite outputs and gradients near float64, also in chunks and at any length."""
    yield from _in_dtype(subject, torch.bfloat16)
    module, x = subject.module(torch.bfloat16), subject.draw(seq_len=LONG, dtype=torch.bfloat16)
    yield from _grows_no_faster(subject, "in bfloat16", lambda: subject.outputs(module, x), module, x)


@checks("precision")
def autocast(subject: Subject) -> Outcomes:
    """Check that a float32 module under autocast to bfloat16 stays finite and near float32, at any length."""
    did = "a float32 module ran under autocast to bfloat16"
    module, x = subject.module(torch.float32), _draw(subject, torch.float32)
    expected, device = subject.outputs(module, x), torch.device(subject.device).type
    with attempting(did, "outputs and gradients"):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = subject.whole(module, x)
        broken = _not_finite(y, module, x)
    yield Outcome(not broken, did, broken or _FINITE, _FINITE)
    yield _near(subject, did, "float32", torch.bfloat16, relative_error(y, expected))
    x = subject.draw(seq_len=LONG, dtype=torch.float32)

    def outputs() -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return subject.outputs(module, x)

    yield from _grows_no_faster(subject, "under autocast to bfloat16", outputs, module, x)


def _in_dtype(subject: Subject, dtype: torch.dtype) -> Outcomes:
    """Compare the module in a dtype with float64, with the same rounded parameters."""
    did = f"module and input were converted to {dtype}"
    module, x = subject.module(dtype), _draw(subject, dtype)
    with attempting(did, f"outputs in {dtype}"):
        y = subject.whole(module, x)
    yield Outcome(y.dtype == dtype, did, f"outputs in {y.dtype}", f"outputs in {dtype}")
    with attempting(f"{did}; a backward pass", "gradients"):
        broken = _not_finite(y, module, x)
    yield Outcome(not broken, did, broken or _FINITE, _FINITE)
    outputs = [y]
    if dtype == torch.bfloat16 and subject.protocol.streams:
        n = x.shape[1]
        sizes = [1] * n if subject.protocol.longest == 1 else [1, n // 3, n - n // 3 - 1]
        with attempting(f"{did}, and the input streamed", f"outputs in {dtype}"), torch.no_grad():
            outputs.append(subject.chunks(module, x.detach(), sizes))
    try:
        wide = subject.outputs(to_dtype(module, torch.float64), x.detach().double())
    except Exception:  # noqa: BLE001 - the property float64 reports it; there is no reference here
        return
    error = max(relative_error(each, wide) for each in outputs)
    yield _near(subject, did, "float64", dtype, error)


def _draw(subject: Subject, dtype: torch.dtype) -> Tensor:
    return subject.draw(seq_len=subject.fitting(_LENGTH), dtype=dtype).requires_grad_()


def _nothing_narrower(subject: Subject) -> Outcome:
    """Perturb input and parameters slightly in both directions: if something is rounded to bfloat16, outputs jump."""
    shares = (_moved(subject, torch.float32, move, 20 + 1000 * draw)[1] for draw, move in enumerate(_MOVES))
    share = next((share for share in shares if share <= _SMOOTH), 1.0)
    did = f"input and parameters in float32 were perturbed by up to {_MOVES[0]:g} of their size"
    found = f"{share:.2g} of the change of the outputs is not smooth"
    return Outcome(share <= _SMOOTH, did, found, f"at most {_SMOOTH:g}: nothing inside is rounded to a narrower dtype")


@torch.no_grad()
def _moved(
    subject: Subject, dtype: torch.dtype, size: float, first_seed: int, part: slice = _EARLY
) -> tuple[float, float]:
    """Perturb input and parameters along a random direction, by `size` relative to them.

    Returns:
        Relative change of the outputs at the positions `part`, and the share of it that is not linear.
    """
    y: list[Tensor] = []
    for way in (1, 0, -1):
        module, x = subject.module(dtype), subject.draw(seq_len=subject.fitting(part.stop), dtype=dtype)
        for seed, t in enumerate((x, *module.parameters()), first_seed):
            if t.is_floating_point():
                t *= 1 + way * size * subject.normal(t.shape, seed).to(t)
        y.append(subject.outputs(module, x)[:, part].double())
    slope, bend = (y[0] - y[2]).norm() / 2, (y[0] + y[2] - 2 * y[1]).norm() / 2
    return relative_error(y[0], y[1]), float(bend / slope.clamp(min=torch.finfo(torch.float64).tiny))


def _grows_no_faster(
    subject: Subject, how: str, outputs: Callable[[], Tensor], module: nn.Module, x: Tensor
) -> Outcomes:
    """Compare errors late in a long sequence with early errors, and with the error from rounding the inputs alone."""
    try:
        narrow = outputs()
        wide, exact = to_dtype(copy.deepcopy(module), torch.float64), x.double()
        rounded = exact * (1 + torch.finfo(torch.bfloat16).eps / 4 * subject.normal(x.shape, 30).to(exact))
        expected, moved = subject.outputs(wide, exact), subject.outputs(wide, rounded)
    except Exception:  # noqa: BLE001 - the properties `lengths` and `float64` report it
        return
    first, last = (relative_error(narrow[:, part], expected[:, part]) for part in (_EARLY, _LATE))
    floor = relative_error(moved[:, _LATE], expected[:, _LATE])
    allowed = max(TOLERANCES[torch.bfloat16].rtol, 3 * first, 3 * floor)
    if last > allowed:
        allowed = max(allowed, _jump(subject, torch.bfloat16, _LATE))
    yield Outcome(
        last <= allowed,
        f"{LONG} positions were mapped {how}",
        f"relative error {last:.1e} at the last {_LENGTH} positions, {first:.1e} at the first, against float64",
        f"at most {allowed:.1e}: the state is accumulated in float32",
        {"relative_error_by_length": {_LENGTH: first, LONG: last}},
    )


def _near(subject: Subject, did: str, reference: str, dtype: torch.dtype, error: float) -> Outcome:
    """Return the outcome for the relative error of a dtype."""
    most = TOLERANCES[dtype].rtol
    if error > most:
        most = max(most, _jump(subject, dtype, _EARLY))
    found = f"relative error {error:.1e} against {reference}"
    return Outcome(error <= most, did, found, f"at most {most:g}", {"relative_error": error})


def _jump(subject: Subject, dtype: torch.dtype, part: slice) -> float:
    """Return the error allowed for a module with jumps, such as hard choices: three times its jumps in float64."""
    moved = (_moved(subject, torch.float64, torch.finfo(dtype).eps, 20 + 1000 * draw, part) for draw in range(3))
    return max((3 * change for change, share in moved if share > _SMOOTH), default=0.0)


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
        did = f"forward and backward pass for inputs of size {size:g}"
        module, x = subject.module(), (size * _draw(subject, subject.dtype).detach()).requires_grad_()
        with attempting(did, _FINITE):
            broken = _not_finite(subject.whole(module, x), module, x)
        yield Outcome(not broken, did, broken or "all finite", _FINITE)


def _not_finite(y: Tensor, module: nn.Module, x: Tensor) -> str:
    """List the tensors that are not finite, outputs or gradients; return an empty string if all are finite."""
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
