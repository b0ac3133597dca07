"""Properties of every call: causality, independent rows, no writes, no random draws, any length."""

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
"""Short and odd lengths, and those around the block sizes of kernels."""
LONG = 512
"""Positions at which a leak from afar shows."""
LONGEST = 2048
_BATCH = 2560
"""Positions of all rows in training mode, where short sequences make as many rows as a batch has."""
ROUNDOFF = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""The roundoff of an FFT over `LONG` positions, relative to the outputs' size."""


@checks("calls")
def causality(subject: Subject) -> Outcomes:
    """Check that later positions change no earlier output and get no gradient from it, also in training mode.

    A causal module reads exactly zero, but for the roundoff of an FFT. Where a module computes in float64, a leak of
    1e-10 shows.
    """
    if subject.looks_ahead:
        raise NotApplicableError("the module was declared to look ahead")
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
        yield _zero(f"the gradient of output {now} was taken, for later positions", future, past)


def _later_positions(subject: Subject, dtype: torch.dtype, train: bool, n: int) -> Outcomes:
    """Replace later positions, and compare the outputs before them."""
    module, rows = subject.module(dtype).train(train), max(2, _BATCH // n) if train else 2
    x, y = (subject.draw(rows, n, seed=seed, dtype=dtype) for seed in (1, 2))
    before, mode = subject.outputs(module, x), "train" if train else "eval"
    for now in (0, 1, n // 2, n - 2):
        other = torch.cat((x[:, : now + 1], y[:, now + 1 :]), dim=1)
        change = (subject.outputs(module, other) - before)[:, : now + 1]
        yield _zero(f"positions after {now} of {n} were replaced ({mode} mode)", change, before)


def _zero(did: str, change: Tensor, whole: Tensor) -> Outcome:
    """Return an outcome that passes if a change is zero, but for roundoff relative to its channel or to all."""
    size, changes = root_mean_square(whole), change.abs().amax((0, 1)).double()
    bounds = ROUNDOFF[change.dtype] * whole.double().square().mean((0, 1)).sqrt().clamp(min=size)
    worst = int((changes - bounds).argmax())
    largest, allowed = float(changes[worst]), float(bounds[worst])
    found = f"earlier ones change by up to {largest:.2g}, their size is {size:.2g}" if largest else "exactly zero"
    return Outcome(largest <= allowed, did, found, f"exactly zero, or roundoff of {allowed:.1g}")


def finest(subject: Subject) -> torch.dtype:
    """Return float64 if all of the module computes in it, so that tiny changes act smoothly; else its own dtype."""
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
    """Check that the output of a row depends neither on the other rows nor on its place, also in training mode."""
    for batch_size in (3, 17):
        module, x = subject.module(), subject.draw(batch_size)
        alone = torch.cat([subject.outputs(module, row) for row in x.split(1)])
        yield equal(f"{batch_size} rows went through together, and one by one", subject.outputs(module, x), alone)
    module, x = subject.module().train(), subject.draw(3)
    other = torch.cat((x[:1], 3 + 2 * subject.draw(2, seed=2)))
    before, after = subject.outputs(module, x)[:1], subject.outputs(module, other)[:1]
    yield equal("the other rows of a batch were replaced (train mode)", after, before)


@checks("calls")
def inputs_unchanged(subject: Subject) -> Outcomes:
    """Check that a call writes neither into its input nor into parameters."""
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
    found = f"written into: {', '.join(written)}" if written else "input and parameters are as before"
    yield Outcome(not written, "a sequence went through", found, "nothing is written into")


@checks("calls")
def deterministic(subject: Subject) -> Outcomes:
    """Check that the same input gives the same output again, also after another sequence: no call leaves a trace."""
    module, x = subject.module(), subject.draw()
    first, _, again = (subject.outputs(module, each) for each in (x, subject.draw(seed=2), x))
    yield equal("a sequence went through, then another, then the first again", again, first)


@checks("calls")
def no_global_draws(subject: Subject) -> Outcomes:
    """Check that in eval mode a call takes no number from torch's global generator."""
    module, x = subject.module(), subject.draw()
    with torch.no_grad(), seeded():
        before = torch.get_rng_state()
        subject.whole(module, x)
        moved = not torch.equal(before, torch.get_rng_state())
    unchanged = "the global generator is unchanged"
    found = "the global generator advanced" if moved else unchanged
    yield Outcome(not moved, "a sequence went through in eval mode", found, unchanged)


@checks("calls")
def eval_without_dropout(subject: Subject) -> Outcomes:
    """Check that eval mode gives the same under any seed of the global generator: dropout and noise are off."""
    module, x = subject.module(), subject.draw()
    one, two = (subject.outputs(module, x, global_seed=seed) for seed in (1, 2))
    yield equal("a sequence went through in eval mode under two seeds of the global generator", one, two)


@checks("calls")
def lengths(subject: Subject) -> Outcomes:
    """Check that a sequence of any length gives the beginning of a longer one's output."""
    longest, module = max(LENGTHS) + 1, subject.module()
    x = subject.draw(seq_len=longest)
    whole = subject.outputs(module, x) if subject.causal else None
    for n in LENGTHS:
        if whole is not None:
            did = f"the first {n} of {longest} positions went through by themselves"
            with attempting(did, "the beginning of the longer output"):
                y = subject.outputs(module, x[:, :n])
            yield equal(did, y, whole[:, :n])
        else:  # a module that looks ahead need only run
            did, asked = f"{n} positions went through", "finite numbers"
            with attempting(did, asked):
                finite = bool(subject.outputs(module, x[:, :n]).isfinite().all())
            yield Outcome(finite, did, asked if finite else "NaN or infinity", asked)
    if whole is None:
        return
    for n in (LONG, LONGEST):
        try:
            y = subject.outputs(module, torch.cat((x, subject.draw(seq_len=n - longest, seed=2)), dim=1))
        except Exception:  # noqa: BLE001 - a module may refuse so many
            return
        yield equal(f"the first {longest} of {n} positions went through by themselves", whole, y[:, :longest])
