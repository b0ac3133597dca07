"""Properties of every call: causality, independent rows, no writes, no random draws, any length."""

from __future__ import annotations

import torch

from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, attempting, equal
from zoo.check.property import checks
from zoo.check.subject import Subject, undrawn

LENGTHS = (1, 2, 7, 8, 16, 31, 32, 33, 63, 64)
"""Short and odd lengths, and those around the block sizes of kernels."""


@checks("calls")
def causality(subject: Subject) -> Outcomes:
    """Check that later positions change no earlier output and get no gradient from it, also in training mode."""
    if subject.looks_ahead:
        raise NotApplicableError("the module was declared to look ahead")
    n = subject.seq_len
    for mode in ("eval", "train"):
        module, x = subject.module().train(mode == "train"), subject.draw()
        before = subject.outputs(module, x)
        for now in (0, 1, n // 2, n - 2):
            other = torch.cat((x[:, : now + 1], subject.draw(seed=2)[:, now + 1 :]), dim=1)
            after = subject.outputs(module, other)
            yield equal(f"positions after {now} were replaced ({mode} mode)", after[:, : now + 1], before[:, : now + 1])
    module, x = subject.module(), subject.draw().requires_grad_()
    y = subject.whole(module, x)
    if not y.requires_grad:
        return
    for now in (0, n // 2):
        (gradient,) = torch.autograd.grad(
            y[:, now].square().sum(), x, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        past, future = (float(part.abs().max()) for part in (gradient[:, : now + 1], gradient[:, now + 1 :]))
        yield Outcome(
            future <= 1e-5 * max(past, 1e-30),
            f"the gradient of output {now} was taken",
            f"up to {future:.2g} at later positions, {past:.2g} at earlier ones",
            "none at later positions",
        )


@checks("calls")
def rows_independent(subject: Subject) -> Outcomes:
    """Check that the output of a row depends neither on the other rows nor on its place, also in training mode."""
    for batch_size in (3, 5):
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
    with torch.no_grad(), undrawn():
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
