"""Check that torch.compile and torch.export give what eager code gives."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from zoo.check.comparison import compared
from zoo.check.finding import Observation, attempting
from zoo.check.subject import Subject


def quietly(observe: Callable[[Subject], Observation]) -> Callable[[Subject], Observation]:
    """Hide the warnings of the tracers, which are about their internals."""

    @functools.wraps(observe)
    def quiet(subject: Subject) -> Observation:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return observe(subject)

    return quiet


@quietly
def compiles(subject: Subject) -> Observation:
    """Check that compiled forward and backward passes equal eager ones (backend aot_eager: no code generator)."""
    module, x = subject.module(), subject.draw(seq_len=8).requires_grad_()
    line = subject.adapter.whole_line
    lines = [
        f"x = draw(2, 8, {subject.d_model})",
        f"b = {line}",
        'module = torch.compile(module, backend="aot_eager")',
        f"a = {line}",
    ]
    did = "the module was compiled by torch.compile"
    torch.compiler.reset()
    whole = torch.compile(lambda x: subject.whole(module, x), backend="aot_eager", fullgraph=True)
    broken = False
    try:
        y = whole(x)
    except Exception:  # noqa: BLE001 - whatever the tracer raises: a graph may break, the result must not
        broken = True
        torch.compiler.reset()
        whole = torch.compile(lambda x: subject.whole(module, x), backend="aot_eager")
        with attempting(did, "the outputs of eager code", lines):
            y = whole(x)
    expected = subject.whole(module, x)
    seen = compared(did, y, expected, lines)
    if seen.passed and expected.requires_grad:
        with attempting(f"{did}; a backward pass", "the gradients of eager code", lines):
            (a,) = torch.autograd.grad(y.square().sum(), x, allow_unused=True, materialize_grads=True)
        (b,) = torch.autograd.grad(expected.square().sum(), x, allow_unused=True, materialize_grads=True)
        seen = compared(f"{did}; gradients for the input", a, b, lines)
    torch.compiler.reset()
    return replace(seen, did=f"{did}, in {'several graphs' if broken else 'one graph'}") if seen.passed else seen


@quietly
def exports(subject: Subject) -> Observation:
    """Check that an exported program gives the outputs of the module, at least at the length of its example."""
    plain, x, other = subject.plain, subject.draw(seq_len=12), subject.draw(seq_len=12, seed=2)
    lines = [
        f"x = draw(2, 12, {subject.d_model})",
        "program = torch.export.export(module, (x,)).module()",
        f"x = draw(2, 12, {subject.d_model}, seed=2)",
        f"a, b = program(x), {subject.adapter.whole_line}",
        "a = a if isinstance(a, torch.Tensor) else a[0]",
    ]
    did = "the module was exported by torch.export, and another sequence of that length went through the program"
    with attempting(did, "the outputs of the module", lines), torch.no_grad():
        program = torch.export.export(plain, (x,)).module()
        y = program(other)
    with torch.no_grad():
        return compared(did, y, plain(other), lines)
