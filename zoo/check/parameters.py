"""Check parameters: every one is trained, none is lost in a copy or in a file."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import nn

from zoo.check.comparison import compared
from zoo.check.finding import NotApplicableError, Observation, attempting
from zoo.check.subject import Subject, undrawn


def parameters_trained(subject: Subject) -> Observation:
    """Check that every parameter that requires a gradient gets one, finite and not zero."""
    module, x = subject.module(), subject.draw(4)
    passed = {id(p) for p in subject.adapter.bypassed(module)}
    named = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) not in passed}
    if not named:
        raise NotApplicableError("the module has no parameters to train")
    y = subject.whole(module, x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(y)
    lines = [
        f"x = draw(4, {subject.seq_len}, {subject.d_model})",
        f"y = {subject.adapter.whole_line}",
        "w = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(y)",
        "(y * w).sum().backward()",
        "trained = {n: p for n, p in module.named_parameters() if p.requires_grad}",
        'print("no gradient:", [n for n, p in trained.items() if p.grad is None or not p.grad.any()])',
    ]
    did = "the gradient of a random sum of the outputs was taken"
    if not y.requires_grad:
        return Observation(False, did, "the output has no gradient at all", "one for every parameter", lines)
    gradients = torch.autograd.grad((y * weights).sum(), list(named.values()), allow_unused=True)
    dead = [name for name, g in zip(named, gradients, strict=True) if g is None or not g.any()]
    broken = [name for name, g in zip(named, gradients, strict=True) if g is not None and not g.isfinite().all()]
    found = {"no gradient": dead, "NaN or infinity": broken}
    said = "; ".join(f"{what} for {', '.join(names)}" for what, names in found.items() if names)
    asked = "a finite gradient that is not zero for every parameter"
    return Observation(not said, did, said or f"all {len(named)} parameters get one", asked, lines)


def deep_copy(subject: Subject) -> Observation:
    """Check that copy.deepcopy gives a module with the same outputs and with parameters of its own."""
    original, did, x = subject.original, "the module was copied by copy.deepcopy", subject.draw()
    lines = _before_and_after(subject, "original, module = module, copy.deepcopy(module)", begin="import copy")
    with attempting(did, "a copy", lines):
        other = copy.deepcopy(original)
    with torch.no_grad():
        expected = subject.whole(original, x)
        seen = compared(did, subject.whole(other, x), expected, lines)
        if not seen.passed:
            return seen
        disturb(other)
        return compared("the copy's parameters were changed", subject.whole(original, x), expected, lines)


def pickled(subject: Subject) -> Observation:
    """Check that pickle restores the module with the same outputs."""
    module, did, x = subject.module(), "the module went through pickle", subject.draw()
    lines = _before_and_after(subject, "module = pickle.loads(pickle.dumps(module))", begin="import pickle")
    with attempting(did, "the same module", lines):
        other = pickle.loads(pickle.dumps(module))
    with torch.no_grad():
        return compared(did, subject.whole(other, x), subject.whole(module, x), lines)


def state_dict(subject: Subject) -> Observation:
    """Check that state_dict, saved and loaded into another module, carries all that the outputs depend on."""
    x, did = subject.draw(), "state_dict was saved and loaded into another module"
    first, other = subject.module(), _another(subject)
    make = [] if subject.factory is None else [*subject.source, f"module = module.to({subject.dtype!s}).eval()"]
    made = (line.replace("manual_seed(0)", "manual_seed(5)") for line in make)
    lines = _before_and_after(subject, "saved = module.state_dict()", *made, "module.load_state_dict(saved)")
    with attempting(did, "the same outputs", lines):
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        return compared(did, subject.whole(other, x), subject.whole(first, x), lines)


def _before_and_after(subject: Subject, *change: str, begin: str = "") -> list[str]:
    """Return Python lines that make `b`, the outputs before a change of `module`, and `a`, those after it."""
    x, y = f"x = draw(2, {subject.seq_len}, {subject.d_model})", subject.adapter.whole_line
    return [*filter(None, [begin]), x, f"b = {y}", *change, f"a = {y}"]


def _another(subject: Subject) -> nn.Module:
    """Build the same module from another seed and change every parameter; change a copy if the module was given."""
    if subject.factory is None:
        other = subject.module()
    else:
        with undrawn():
            other = subject.make(seed=5).to(subject.device, subject.dtype).eval()
    disturb(other)
    return other


def disturb(module: nn.Module) -> None:
    """Change every parameter."""
    for p in module.parameters():
        if p.is_floating_point():
            p.data = p.data + 1
