"""Properties of every call: causality, independent rows, no writes, no random draws, any length."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zoo.check.comparison import compared, first_failure
from zoo.check.finding import NotApplicableError, Observation, attempting
from zoo.check.subject import Subject, undrawn

LENGTHS = (1, 2, 7, 8, 16, 31, 32, 33, 63, 64)
"""Sequences of one and two positions, odd ones, and those around the blocks of kernels."""


def causality(subject: Subject) -> Observation:
    """Check that later positions change no earlier output and get no gradient from it, also in training mode."""
    if subject.looks_ahead:
        raise NotApplicableError("the module was declared to look ahead")
    return first_failure(_causality(subject))


def _causality(subject: Subject) -> Iterator[Observation]:
    n, y_line = subject.seq_len, subject.adapter.whole_line
    for mode in ("eval", "train"):
        module, x = subject.module(), subject.draw()
        module.train(mode == "train")
        with torch.no_grad(), undrawn():
            before = subject.whole(module, x)
        for now in (0, 1, n // 2, n - 2):
            other = torch.cat((x[:, : now + 1], subject.draw(seed=2)[:, now + 1 :]), dim=1)
            with torch.no_grad(), undrawn():
                after = subject.whole(module, other)
            yield compared(
                f"positions after {now} were replaced ({mode} mode)",
                after[:, : now + 1],
                before[:, : now + 1],
                [
                    f"module.{mode}()",
                    f"x = draw(2, {n}, {subject.d_model})",
                    "torch.manual_seed(0)",
                    f"b = {y_line}[:, :{now + 1}]",
                    f"x = torch.cat((x[:, :{now + 1}], draw(2, {n}, {subject.d_model}, seed=2)[:, {now + 1}:]), dim=1)",
                    "torch.manual_seed(0)",
                    f"a = {y_line}[:, :{now + 1}]",
                ],
            )
    module, x = subject.module(), subject.draw().requires_grad_()
    y = subject.whole(module, x)
    if not y.requires_grad:
        return
    for now in (0, n // 2):
        (gradient,) = torch.autograd.grad(
            y[:, now].square().sum(), x, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        past, future = (float(part.abs().max()) for part in (gradient[:, : now + 1], gradient[:, now + 1 :]))
        yield Observation(
            future <= 1e-5 * max(past, 1e-30),
            f"the gradient of output {now} was taken",
            f"up to {future:.2g} at later positions, {past:.2g} at earlier ones",
            "none at later positions",
            [
                f"x = draw(2, {n}, {subject.d_model}).requires_grad_()",
                f"g = torch.autograd.grad({y_line}[:, {now}].square().sum(), x)[0]",
                f"print(float(g[:, {now + 1}:].abs().max()), float(g[:, :{now + 1}].abs().max()))",
            ],
        )


def rows_independent(subject: Subject) -> Observation:
    """Check that a sequence gives the same next to any others, at any place of the batch, also in training mode."""
    return first_failure(_rows(subject))


def _rows(subject: Subject) -> Iterator[Observation]:
    d, n, line = subject.d_model, subject.seq_len, subject.adapter.whole_line
    for batch_size in (3, 5):
        module, x = subject.module(), subject.draw(batch_size)
        with torch.no_grad():
            whole = subject.whole(module, x)
            alone = torch.cat([subject.whole(module, row.unsqueeze(0)) for row in x])
        yield compared(
            f"{batch_size} rows went through together, and one by one",
            whole,
            alone,
            [
                f"rows = draw({batch_size}, {n}, {d})",
                "x = rows",
                f"a = {line}",
                f"b = torch.cat([{line} for x in rows.split(1)])",
            ],
        )
    module, x = subject.module().train(), subject.draw(3)
    other = torch.cat((x[:1], 3 + 2 * subject.draw(2, seed=2)))
    with torch.no_grad(), undrawn():
        before = subject.whole(module, x)[:1]
    with torch.no_grad(), undrawn():
        after = subject.whole(module, other)[:1]
    yield compared(
        "the other rows of a batch were replaced (train mode)",
        after,
        before,
        [
            "module.train()",
            f"x = draw(3, {n}, {d})",
            "torch.manual_seed(0)",
            f"b = {line}[:1]",
            f"x = torch.cat((x[:1], 3 + 2 * draw(2, {n}, {d}, seed=2)))",
            "torch.manual_seed(0)",
            f"a = {line}[:1]",
        ],
    )


def inputs_unchanged(subject: Subject) -> Observation:
    """Check that a call writes neither into its input nor into parameters, and returns no view of its input."""
    module, x = subject.module(), subject.draw()
    names = ["x", *(name for name, _ in module.named_parameters())]
    tensors = [x, *module.parameters()]
    before = [(t.detach().clone(), t._version) for t in tensors]
    with torch.no_grad():
        subject.whole(module, x)
        if subject.adapter.streams:
            subject.chunks(module, x[:, :3], [1] * 3 if subject.adapter.longest == 1 else [2, 1])
    written = [
        name
        for name, t, (copied, version) in zip(names, tensors, before, strict=True)
        if t._version != version or not torch.equal(t, copied)
    ]
    return Observation(
        not written,
        "a sequence went through",
        f"written into: {', '.join(written)}" if written else "input and parameters are as before",
        "nothing is written into",
        [
            f"x = draw(2, {subject.seq_len}, {subject.d_model})",
            "b = x.clone()",
            "with torch.no_grad():",
            f"    {subject.adapter.whole_line}",
            'print("x written:", not torch.equal(x, b), x._version)',
        ],
    )


def deterministic(subject: Subject) -> Observation:
    """Check that the same input gives the same output again, also after another sequence: no call leaves a trace."""
    module, x, other = subject.module(), subject.draw(), subject.draw(seed=2)
    with torch.no_grad():
        with undrawn():
            first = subject.whole(module, x)
        with undrawn():
            subject.whole(module, other)
        with undrawn():
            again = subject.whole(module, x)
    return compared(
        "a sequence went through, then another, then the first again",
        again,
        first,
        [
            f"x = draw(2, {subject.seq_len}, {subject.d_model})",
            "with torch.no_grad():",
            f"    b = {subject.adapter.whole_line}",
            f"    x = draw(2, {subject.seq_len}, {subject.d_model}, seed=2)",
            f"    {subject.adapter.whole_line}",
            f"    x = draw(2, {subject.seq_len}, {subject.d_model})",
            f"    a = {subject.adapter.whole_line}",
        ],
    )


def no_global_draws(subject: Subject) -> Observation:
    """Check that in eval mode a call takes no number from torch's global generator."""
    module, x = subject.module(), subject.draw()
    with torch.no_grad(), undrawn():
        before = torch.get_rng_state()
        subject.whole(module, x)
        moved = not torch.equal(before, torch.get_rng_state())
    return Observation(
        not moved,
        "a sequence went through in eval mode",
        "the global generator advanced" if moved else "the global generator is unchanged",
        "the global generator is unchanged",
        [
            f"x = draw(2, {subject.seq_len}, {subject.d_model})",
            "before = torch.get_rng_state()",
            subject.adapter.whole_line,
            'print("moved:", not torch.equal(before, torch.get_rng_state()))',
        ],
    )


def eval_without_dropout(subject: Subject) -> Observation:
    """Check that eval mode gives the same under any seed of the global generator: dropout and noise are off."""
    module, x = subject.module(), subject.draw()
    outputs = []
    with torch.no_grad(), undrawn():
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs.append(subject.whole(module, x))
    return compared(
        "a sequence went through in eval mode under two seeds of the global generator",
        outputs[0],
        outputs[1],
        [
            f"x = draw(2, {subject.seq_len}, {subject.d_model})",
            "torch.manual_seed(1)",
            f"a = {subject.adapter.whole_line}",
            "torch.manual_seed(2)",
            f"b = {subject.adapter.whole_line}",
        ],
    )


def lengths(subject: Subject) -> Observation:
    """Check lengths 1, 2, 7, 63 and those around powers of two: outputs are the beginning of a longer sequence's."""
    return first_failure(_beginnings(subject) if subject.causal else _lengths_run(subject))


def _beginnings(subject: Subject) -> Iterator[Observation]:
    longest, line = max(LENGTHS) + 1, subject.adapter.whole_line
    module, x = subject.module(), subject.draw(seq_len=longest)
    with torch.no_grad():
        whole = subject.whole(module, x)
    for n in LENGTHS:
        draw = f"x = draw(2, {longest}, {subject.d_model})"
        lines = [draw, f"b = {line}[:, :{n}]", f"x = x[:, :{n}]", f"a = {line}"]
        did = f"the first {n} of {longest} positions went through by themselves"
        with torch.no_grad(), attempting(did, "the beginning of the longer output", lines):
            y = subject.whole(module, x[:, :n])
        yield compared(did, y, whole[:, :n], lines)


def _lengths_run(subject: Subject) -> Iterator[Observation]:
    """Check only for finite outputs of the right shape: the module looks ahead."""
    module = subject.module()
    for n in LENGTHS:
        did, asked = f"{n} positions went through", "finite numbers"
        lines = [f"x = draw(2, {n}, {subject.d_model})", f"print({subject.adapter.whole_line}.isfinite().all())"]
        with torch.no_grad(), attempting(did, asked, lines):
            finite = bool(subject.whole(module, subject.draw(seq_len=n)).isfinite().all())
        yield Observation(finite, did, asked if finite else "NaN or infinity", asked, lines)
