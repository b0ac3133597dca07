"""The property of padding, in each form in which a module takes it: the content of the padding changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.adapters.protocols import arguments_of, first_tensor
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, attempting, equal
from zoo.check.property import checks
from zoo.check.subject import Subject

_LENGTH = 20
_VALID = (20, 13, 1)


class Form(NamedTuple):
    """One form in which a module takes the positions that count.

    Attributes:
        argument: the keyword.
        make: maps booleans (batch, seq), true for a position that counts, to the value of the argument.
        left: whether it can also mark padding at the start.
    """

    argument: str
    make: Callable[[Tensor], Tensor]
    left: bool


FORMS = (
    Form("lengths", lambda valid: valid.sum(1), left=False),
    Form("attention_mask", lambda valid: valid.long(), left=True),
    Form("mask", lambda valid: valid, left=True),
    Form("key_padding_mask", lambda valid: ~valid, left=True),
    Form("src_key_padding_mask", lambda valid: ~valid, left=True),
)
PACKED = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q")


@checks("padding")
def padding(subject: Subject) -> Outcomes:
    """Check that padding changes no output that counts and gets no gradient; a padded row equals the row unpadded."""
    module = subject.module()
    takes = arguments_of(module)
    if (form := next((f for f in FORMS if f.argument in takes), None)) is not None:
        # Padding at the end leaks in a module that looks ahead; padding at the start, or in its state, in a causal one.
        for side in ("right", "left") if form.left else ("right",):
            yield from _padded(subject, module, form, side)
        stream = getattr(module, "stream", None)
        if form.argument == "lengths" and stream is not None and "lengths" in inspect.signature(stream).parameters:
            yield _padded_state(subject, module)
    elif (argument := next((name for name in PACKED if name in takes), None)) is not None:
        yield _packed(subject, module, argument)
    else:
        raise NotApplicableError(f"the module takes no {', '.join([*(f.argument for f in FORMS), PACKED[0]])}")


def _padded(subject: Subject, module: nn.Module, form: Form, side: str) -> Outcomes:
    rows, where = len(_VALID), f"({side}, {form.argument})"
    valid = torch.arange(_LENGTH) < torch.tensor(_VALID)[:, None]
    valid = (valid.flip(1) if side == "left" else valid).to(subject.device)
    x, other = subject.draw(rows, _LENGTH), subject.draw(rows, _LENGTH, seed=2)
    changed = torch.where(valid.unsqueeze(-1), x, 10 * other).requires_grad_()

    def outputs(x: Tensor) -> Tensor:
        return first_tensor(subject.protocol.call(module, x, **{form.argument: form.make(valid)}))

    try:
        with torch.no_grad():
            before = outputs(x)
    except Exception as error:
        if side == "right":
            raise NotApplicableError(f"{form.argument} is not (batch, seq) here: {error!s:.120}") from error
        return  # the module refuses padding at the start
    did = f"other numbers were put into the padding {where}"
    with attempting(did, "the outputs as before"):
        after = outputs(changed)
    yield equal(did, after[valid], before[valid])
    if after.requires_grad:
        total = torch.where(valid.unsqueeze(-1), after * subject.weights(after), 0.0).sum()
        (gradient,) = torch.autograd.grad(total, changed, materialize_grads=True)
        leaked, size = float(gradient[~valid].abs().max()), float(gradient[valid].abs().max())
        yield Outcome(
            leaked <= 1e-6 * size,
            f"the gradient of the outputs that count was taken {where}",
            f"up to {leaked:.2g} in the padding, {size:.2g} elsewhere",
            "none in the padding",
        )
    alone = [subject.outputs(module, x[row : row + 1, valid[row]])[0] for row in range(rows)]
    yield equal(f"padded rows, and the same rows unpadded {where}", before[valid], torch.cat(alone))
    row = slice(1, 2)  # a batch of one, in which no row is whole
    y = first_tensor(subject.protocol.call(module, x[row], **{form.argument: form.make(valid[row])}))
    yield equal(f"one padded row, and the same row unpadded {where}", y[valid[row]], alone[1])


@torch.no_grad()
def _padded_state(subject: Subject, module: Any) -> Outcome:
    """Continue after a chunk of rows of several lengths: each row continues from its own end."""
    first, second = subject.draw(2, 6), subject.draw(2, 5, seed=2)
    _, state = module.stream(first, None, torch.tensor([6, 2], device=subject.device))
    y, _ = module.stream(second, state)
    alone = subject.whole(module, torch.cat((first[1:, :2], second[1:]), dim=1))
    return equal("a chunk with a row of 2 positions of 6 was continued", y[1], alone[0, 2:])


@torch.no_grad()
def _packed(subject: Subject, module: nn.Module, argument: str) -> Outcome:
    """Compare sequences end to end in one row with each by itself."""
    sizes = [7, 1, 12]
    x = subject.draw(1, sum(sizes))
    ends = torch.tensor([0, *sizes]).cumsum(0).to(subject.device, torch.int32)
    did = f"sequences of {', '.join(map(str, sizes))} positions went through end to end ({argument}), and one by one"
    with attempting(did, "the outputs of each by itself"):
        y = first_tensor(subject.protocol.call(module, x, **{argument: ends}))
    return equal(did, y, torch.cat([subject.whole(module, part) for part in x.split(sizes, dim=1)], dim=1))
