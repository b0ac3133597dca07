"""Check padding, in each form that the module takes: its content must change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.check.adapters.adapter import first_tensor
from zoo.check.comparison import compared, first_failure
from zoo.check.finding import NotApplicableError, Observation, attempting
from zoo.check.subject import Subject

_LENGTH = 20
_VALID = (20, 13, 1)


class Form(NamedTuple):
    """One way to tell a module which positions count.

    Attributes:
        argument: the keyword that takes it.
        make: maps booleans (batch, seq), true where a position counts, to the value of the argument.
        line: the same as a line of Python about `valid`.
        left: whether it can say that the first positions do not count.
    """

    argument: str
    make: Callable[[Tensor], Tensor]
    line: str
    left: bool


FORMS = (
    Form("lengths", lambda valid: valid.sum(1), "valid.sum(1)", left=False),
    Form("attention_mask", lambda valid: valid.long(), "valid.long()", left=True),
    Form("mask", lambda valid: valid, "valid", left=True),
    Form("key_padding_mask", lambda valid: ~valid, "~valid", left=True),
    Form("src_key_padding_mask", lambda valid: ~valid, "~valid", left=True),
)
PACKED = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q")


def padding(subject: Subject) -> Observation:
    """Check that padding changes no output that counts and gets no gradient; a padded row equals the row unpadded."""
    module = subject.module()
    takes = inspect.signature(module.forward).parameters
    if (form := next((f for f in FORMS if f.argument in takes), None)) is not None:
        return first_failure(_padded(subject, module, form))
    if (argument := next((name for name in PACKED if name in takes), None)) is not None:
        return _packed(subject, module, argument)
    raise NotApplicableError(f"the module takes no {', '.join([*(f.argument for f in FORMS), PACKED[0]])}")


def _padded(subject: Subject, module: nn.Module, form: Form) -> Iterator[Observation]:
    d, rows = subject.d_model, len(_VALID)
    # Of a module that looks ahead, padding at the end leaks; of a causal one, padding at the start or in its state.
    for side in ("right", "left") if form.left else ("right",):
        valid = torch.arange(_LENGTH) < torch.tensor(_VALID)[:, None]
        valid = (valid.flip(1) if side == "left" else valid).to(subject.device)
        given, x, other = form.make(valid), subject.draw(rows, _LENGTH), subject.draw(rows, _LENGTH, seed=2)
        changed = torch.where(valid.unsqueeze(-1), x, 10 * other).requires_grad_()
        flip = ".flip(1)" if side == "left" else ""
        lines = [
            f"valid = (torch.arange({_LENGTH}) < torch.tensor({list(_VALID)})[:, None]){flip}",
            f"x = draw({rows}, {_LENGTH}, {d})",
            f"b = {_call(subject, form)}[valid]",
            f"x = torch.where(valid.unsqueeze(-1), x, 10 * draw({rows}, {_LENGTH}, {d}, seed=2))",
            f"a = {_call(subject, form)}[valid]",
        ]
        did = f"other numbers stood in the padding ({side}, {form.argument})"
        try:
            with torch.no_grad():
                before = _outputs(subject, module, x, {form.argument: given})
        except Exception as error:
            if side == "right":
                raise NotApplicableError(f"{form.argument} is not (batch, seq) here: {error!s:.120}") from error
            return
        with attempting(did, "the outputs as before", lines):
            after = _outputs(subject, module, changed, {form.argument: given})
        yield compared(did, after[valid], before[valid], lines)
        if after.requires_grad:
            weights = subject.draw(rows, _LENGTH, seed=3).sum(-1, keepdim=True) * valid.unsqueeze(-1)
            total = torch.where(valid.unsqueeze(-1), after * weights, 0.0).sum()
            (gradient,) = torch.autograd.grad(total, changed, allow_unused=True, materialize_grads=True)
            leaked, size = float(gradient[~valid].abs().max()), float(gradient[valid].abs().max())
            yield Observation(
                leaked <= 1e-6 * size,
                f"the gradient of the outputs that count was taken ({side}, {form.argument})",
                f"up to {leaked:.2g} in the padding, {size:.2g} elsewhere",
                "none in the padding",
                lines,
            )
        if side == "right":
            with torch.no_grad():
                alone = [subject.whole(module, x[row : row + 1, :n])[0] for row, n in enumerate(_VALID)]
            alone_lines = [
                *lines[:3],
                "a = b",
                "rows, valid_rows = x, valid.sum(1).tolist()",
                f"b = torch.cat([{subject.adapter.whole_line}[0] for x in "
                "(rows[i : i + 1, :n] for i, n in enumerate(valid_rows))])",
            ]
            yield compared(
                f"padded rows, and the same rows unpadded ({form.argument})",
                before[valid],
                torch.cat(alone),
                alone_lines,
            )
    if form.argument == "lengths" and "lengths" in inspect.signature(getattr(module, "stream", lambda: 0)).parameters:
        yield _padded_state(subject, module)


def _padded_state(subject: Subject, module: Any) -> Observation:
    """Return a ragged chunk, then another: each row goes on from its own end."""
    first, second = subject.draw(2, 6), subject.draw(2, 5, seed=2)
    counts = torch.tensor([6, 2], device=subject.device)
    d = subject.d_model
    lines = [
        f"first, second = draw(2, 6, {d}), draw(2, 5, {d}, seed=2)",
        "_, state = module.stream(first, None, torch.tensor([6, 2]))",
        "a = module.stream(second, state)[0][1]",
        "x = torch.cat((first[1:, :2], second[1:]), dim=1)",
        f"b = {subject.adapter.whole_line}[0, 2:]",
    ]
    with torch.no_grad():
        _, state = module.stream(first, None, counts)
        y, _ = module.stream(second, state)
        alone = subject.whole(module, torch.cat((first[1:, :2], second[1:]), dim=1))
    return compared("a chunk with a row of 2 positions of 6 was continued", y[1], alone[0, 2:], lines)


def _packed(subject: Subject, module: nn.Module, argument: str) -> Observation:
    """Compare sequences end to end in one row with each by itself."""
    sizes = (7, 1, 12)
    x = subject.draw(1, sum(sizes))
    ends = torch.tensor([0, *sizes]).cumsum(0).to(subject.device, torch.int32)
    lines = [
        f"packed = draw(1, {sum(sizes)}, {subject.d_model})",
        f"ends = torch.tensor({ends.tolist()}, dtype=torch.int32)",
        f"a = module(packed, {argument}=ends)",
        "a = a if isinstance(a, torch.Tensor) else a[0]",
        f"b = torch.cat([{subject.adapter.whole_line} for x in packed.split({list(sizes)}, dim=1)], dim=1)",
    ]
    did = f"sequences of {', '.join(map(str, sizes))} positions went through end to end ({argument}), and one by one"
    with torch.no_grad():
        with attempting(did, "the outputs of each by itself", lines):
            y = _outputs(subject, module, x, {argument: ends})
        alone = torch.cat([subject.whole(module, part) for part in x.split(list(sizes), dim=1)], dim=1)
    return compared(did, y, alone, lines)


def _outputs(subject: Subject, module: nn.Module, x: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    return first_tensor(subject.adapter.call(module, x, **arguments))


def _call(subject: Subject, form: Form) -> str:
    keyword = subject.adapter.input_keyword
    given = "x" if keyword is None else f"{keyword}=x"
    tail = "" if "[0]" not in subject.adapter.whole_line else "[0]"
    return f"module({given}, {form.argument}={form.line}){tail}"
