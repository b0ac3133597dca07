"""Properties of compilation: torch.compile and torch.export give what eager code gives."""

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
"""Runs both traced passes as they are. "aot_eager" would import the code generator first, which takes seconds."""


@checks("compilers", slow=True)
def compiles(subject: Subject) -> Outcomes:
    """Check that compiled forward and backward passes equal eager ones, without a code generator."""
    module, x = subject.module(), subject.draw(seq_len=subject.fitting(8)).requires_grad_()
    did = "the module was compiled by torch.compile"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracers, about their internals
        torch.compiler.reset()
        whole = torch.compile(lambda x: subject.whole(module, x), backend=_BACKEND, fullgraph=True)
        graphs = "one graph"
        try:
            y = whole(x)
        except Exception:  # noqa: BLE001 - whatever the tracer raises: a graph may break, the result must not
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
            seen.append(equal(f"{did}; gradients for the input", a, b))
        torch.compiler.reset()
    for each in seen:
        yield replace(each, did=f"{each.did}, in {graphs}")


@checks("compilers", slow=True)
def exports(subject: Subject) -> Outcomes:
    """Check that an exported program gives the outputs of the module, at least at the length of its example."""
    n, plain = subject.fitting(12), subject.plain()
    x, other = subject.draw(seq_len=n), subject.draw(seq_len=n, seed=2)
    did = "the module was exported by torch.export, and another sequence of that length went through the program"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with attempting(did, "the outputs of the module"), _unless_branching():
            y = torch.export.export(plain, (x,)).module()(other)
        expected = plain(other)
    yield equal(did, y, expected)


@contextmanager
def _unless_branching() -> Iterator[None]:
    """Turn the tracer's error about a condition on numbers into a reason why the property does not apply."""
    try:
        yield
    except Exception as error:
        if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
            raise NotApplicableError("the module branches on its numbers, which no program can follow") from error
        raise
