"""Properties of calls: causality, independent rows, no side effects, no random numbers in eval mode, any length."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.check.outcome import (
    NotApplicableError,
    Outcome,
    Outcomes,
    attempting,
    equal,
    root_mean_square,
)
from zoo.check.property import checks
from zoo.check.subject import Subject
from zoo.seeds import seeded

LENGTHS = (1, 2, 7, 8, 16, 31, 32, 33, 63, 64, 130, 257)
"""Short and odd lengths, and lengths around the block sizes of kernels."""
LONG = 512
"""Sequence length that reveals leaks over long distances."""
LONGEST = 2048
_BATCH = 2560
"""Positions per batch in training mode, so that batches of short sequences have as many rows as in training."""
ROUNDOFF = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Roundoff of an FFT over `LONG` positions, relative to the RMS of the outputs."""


@checks("calls")
def causality(subject: Subject) -> Outcomes:
    """Check that earlier outputs do not depend on later inputs, by values and gradients, also in training mode.

    The dependence must be exactly zero, except for the roundoff of an FFT. If the module can compute in float64, a leak
    of 1e-10 is found.
    """
    if subject.looks_ahead:
        raise NotApplicableError("looks_ahead is set")
    dtype = finest(subject)
    for train in (False, True):
        yield from _later_positions(subject, dtype, train, subject.seq_len)
    if subject.takes(LONG):
        yield from _later_positions(subject, dtype, False, LONG)
    x = subject.draw(dtype=dtype).requires_grad_()
    y = subject.whole(subject.module(dtype), x)
    if not y.requires_grad:
        return
    for now in (0, subject.seq_len // 2):
        (gradient,) = torch.autograd.grad(
            y[:, now].square().sum(), x, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        future, past = gradient[:, now + 1 :], gradient[:, : now + 1]
        yield _zero(f"gradient of output {now} with respect to later inputs", future, past)


def _later_positions(subject: Subject, dtype: torch.dtype, train: bool, n: int) -> Outcomes:
    """Replace later positions and compare the earlier outputs."""
    module, rows = subject.module(dtype).train(train), max(2, _BATCH // n) if train else 2
    x, y = (subject.draw(rows, n, seed=seed, dtype=dtype) for seed in (1, 2))
    before, mode = subject.outputs(module, x), "train" if train else "eval"
    for now in (0, 1, n // 2, n - 2):
        other = torch.cat((x[:, : now + 1], y[:, now + 1 :]), dim=1)
        change = (subject.outputs(module, other) - before)[:, : now + 1]
        yield _zero(f"change of earlier outputs if positions after {now} of {n} are replaced ({mode})", change, before)


def _zero(did: str, change: Tensor, whole: Tensor) -> Outcome:
    """Return an outcome that passes if `change` is zero, except for roundoff relative to its channel or to `whole`."""
    size, changes = root_mean_square(whole), change.abs().amax((0, 1)).double()
    bounds = ROUNDOFF[change.dtype] * whole.double().square().mean((0, 1)).sqrt().clamp(min=size)
    worst = int((changes - bounds).argmax())
    largest, allowed = float(changes[worst]), float(bounds[worst])
    found = f"up to {largest:.2g} where zero is expected (RMS {size:.2g})" if largest else "exactly zero"
    return Outcome(largest <= allowed, did, found, f"exactly zero, or roundoff up to {allowed:.1g}")


def finest(subject: Subject) -> torch.dtype:
    """Return float64 if the whole module computes in it (tiny changes act smoothly), else the subject's dtype."""
    try:
        module, x = subject.module(torch.float64), subject.draw(dtype=torch.float64)
        by = 1e-8 * subject.draw(seed=2, dtype=torch.float64)
        y, ahead, behind = (subject.outputs(module, each) for each in (x, x + by, x - by))
    except Exception:  # noqa: BLE001 - a foreign module may raise anything
        return subject.dtype
    smooth = float((ahead + behind - 2 * y).norm()) < 1e-3 * float((ahead - behind).norm())
    return torch.float64 if y.dtype == x.dtype and smooth else subject.dtype


@checks("calls")
def rows_independent(subject: Subject) -> Outcomes:
    """Check that the output of a row does not depend on the other rows or on its index, also in training mode."""
    for batch_size in (3, 17):
        module, x = subject.module(), subject.draw(batch_size)
        alone = torch.cat([subject.outputs(module, row) for row in x.split(1)])
        yield equal(f"a batch of {batch_size} rows was compared with single rows", subject.outputs(module, x), alone)
    module, x = subject.module().train(), subject.draw(3)
    other = torch.cat((x[:1], 3 + 2 * subject.draw(2, seed=2)))
    before, after = subject.outputs(module, x)[:1], subject.outputs(module, other)[:1]
    yield equal("the other rows of a batch were replaced (train mode)", after, before)


@checks("calls")
def inputs_unchanged(subject: Subject) -> Outcomes:
    """Check that a call does not modify its input or the parameters."""
    module, x = subject.module(), subject.draw()
    tensors = {"x": x, **dict(module.named_parameters())}
    before = {name: (t.detach().clone(), t._version) for name, t in tensors.items()}
    subject.outputs(module, x)
    if subject.protocol.streams:
        with torch.no_grad():
            subject.chunks(module, x[:, :3], [1] * 3 if subject.protocol.longest == 1 else [2, 1])
    written = [
        name for name, t in tensors.items() if t._version != before[name][1] or not torch.equal(t, before[name][0])
    ]
    unchanged = "input and parameters are unchanged"
    found = f"modified: {', '.join(written)}" if written else unchanged
    yield Outcome(not written, "the module was called", found, unchanged)


@checks("calls")
def deterministic(subject: Subject) -> Outcomes:
    """Check that a second call gives the same output, even after a call on another sequence."""
    module, x = subject.module(), subject.draw()
    first, _, again = (subject.outputs(module, each) for each in (x, subject.draw(seed=2), x))
    yield equal("the same sequence was mapped twice, with another one in between", again, first)


@checks("calls")
def no_global_draws(subject: Subject) -> Outcomes:
    """Check that a call in eval mode does not use torch's global random generator."""
    module, x = subject.module(), subject.draw()
    with torch.no_grad(), seeded():
        before = torch.get_rng_state()
        subject.whole(module, x)
        moved = not torch.equal(before, torch.get_rng_state())
    unchanged = "the global generator is unchanged"
    found = "the global generator advanced" if moved else unchanged
    yield Outcome(not moved, "the module was called in eval mode", found, unchanged)


@checks("calls")
def eval_without_dropout(subject: Subject) -> Outcomes:
    """Check that outputs in eval mode do not depend on the global seed: dropout and noise are off."""
    module, x = subject.module(), subject.draw()
    one, two = (subject.outputs(module, x, global_seed=seed) for seed in (1, 2))
    yield equal("outputs in eval mode were compared for two global seeds", one, two)


@checks("calls")
def lengths(subject: Subject) -> Outcomes:
    """Check that sequences of any length work, and give the beginning of a longer sequence's output."""
    longest, module = max(LENGTHS) + 1, subject.module()
    x = subject.draw(seq_len=longest)
    whole = subject.outputs(module, x) if subject.causal else None
    for n in LENGTHS:
        if whole is not None:
            did = f"the first {n} of {longest} positions were mapped alone and compared with the whole"
            with attempting(did, "the beginning of the longer output"):
                y = subject.outputs(module, x[:, :n])
            yield equal(did, y, whole[:, :n])
        else:  # a module that looks ahead must only run
            did, expected = f"{n} positions were mapped", "finite outputs"
            with attempting(did, expected):
                finite = bool(subject.outputs(module, x[:, :n]).isfinite().all())
            yield Outcome(finite, did, expected if finite else "NaN or infinity", expected)
    if whole is None:
        return
    for n in (LONG, LONGEST):
        try:
            y = subject.outputs(module, torch.cat((x, subject.draw(seq_len=n - longest, seed=2)), dim=1))
        except Exception:  # noqa: BLE001 - a module may refuse long sequences
            return
        did = f"the first {longest} of {n} positions were mapped alone and compared with the whole"
        yield equal(did, whole, y[:, :longest])
