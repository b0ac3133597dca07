"""Properties of compilation: torch.compile and torch.export give the outputs of eager code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from zoo.check.outcome import NotApplicableError, Outcomes, attempting, equal
from zoo.check.property import checks
from zoo.check.subject import Subject

_BACKEND = "aot_eager_default_partitioner"
"""Runs the traced forward and backward passes eagerly; unlike "aot_eager" it does not import the code generator, which
takes seconds."""


@checks("compilers", slow=True)
def compiles(subject: Subject) -> Outcomes:
    """Check that traced forward and backward passes of torch.compile equal eager ones (no code is generated)."""
    module, x = subject.module(), subject.draw(seq_len=subject.fitting(8)).requires_grad_()
    did = "the module was compiled by torch.compile"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the tracers about their internals
        torch.compiler.reset()
        whole = torch.compile(lambda x: subject.whole(module, x), backend=_BACKEND, fullgraph=True)
        graphs = "one graph"
        try:
            y = whole(x)
        except Exception:  # noqa: BLE001 - the tracer may raise anything; graph breaks are allowed
            graphs = "several graphs"
            torch.compiler.reset()
            whole = torch.compile(lambda x: subject.whole(module, x), backend=_BACKEND)
            with attempting(did, "the outputs of eager code"):
                y = whole(x)
        expected = subject.whole(module, x)
        seen = [equal(did, y, expected)]
        if seen[0].passed and expected.requires_grad:
            with attempting(f"{did}; a backward pass", "the gradients of eager code"):
                (a,) = torch.autograd.grad(y.square().sum(), x, materialize_grads=True)
            (b,) = torch.autograd.grad(expected.square().sum(), x, materialize_grads=True)
            seen.append(equal(f"{did}; gradient of the input", a, b))
        torch.compiler.reset()
    for each in seen:
        yield replace(each, did=f"{each.did}, in {graphs}")


@checks("compilers", slow=True)
def exports(subject: Subject) -> Outcomes:
    """Check that an exported program gives the module's outputs for another sequence of the example's length."""
    n, plain = subject.fitting(12), subject.plain()
    x, other = subject.draw(seq_len=n), subject.draw(seq_len=n, seed=2)
    did = "the module was exported by torch.export, and the program was run on another sequence of this length"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with attempting(did, "the outputs of the module"), _unless_branching():
            y = torch.export.export(plain, (x,)).module()(other)
        expected = plain(other)
    yield equal(did, y, expected)


@contextmanager
def _unless_branching() -> Iterator[None]:
    """Turn the tracer's error about data-dependent control flow into NotApplicableError."""
    try:
        yield
    except Exception as error:
        if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
            raise NotApplicableError("the module has data-dependent control flow, which cannot be exported") from error
        raise
