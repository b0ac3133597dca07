"""The property `padding`: the content of padding has no influence, for each way to mark padding."""

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
    """One way to mark valid positions.

    Attributes:
        argument: name of the argument.
        make: maps a mask (batch, seq), true for valid positions, to the value of the argument.
        left: whether it can also mark padding on the left.
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
    """Check that padding has no influence on valid outputs and no gradient, and padded rows equal unpadded ones."""
    module = subject.module()
    takes = arguments_of(module)
    rejected: NotApplicableError | None = None
    for form in (f for f in FORMS if f.argument in takes):
        try:
            # Right padding can leak in modules that look ahead, left padding and the state after it in causal ones.
            for side in ("right", "left") if form.left else ("right",):
                yield from _padded(subject, module, form, side)
        except NotApplicableError as reason:  # for example a mask over pairs of positions
            rejected = rejected or reason
            continue
        stream = getattr(module, "stream", None)
        if form.argument == "lengths" and stream is not None and "lengths" in inspect.signature(stream).parameters:
            yield _padded_state(subject, module)
        return
    if rejected is not None:
        raise rejected
    if (argument := next((name for name in PACKED if name in takes), None)) is not None:
        yield _packed(subject, module, argument)
    else:
        known = ", ".join([*(f.argument for f in FORMS), PACKED[0]])
        raise NotApplicableError(f"the module has none of the arguments {known}")


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
            shape = tuple(form.make(valid).shape)
            raise NotApplicableError(f"the module rejects {form.argument} of shape {shape}: {error!s:.120}") from error
        return  # the module rejects left padding
    did = f"the padding was overwritten with other values {where}"
    with attempting(did, "unchanged outputs"):
        after = outputs(changed)
    yield equal(did, after[valid], before[valid])
    if after.requires_grad:
        total = torch.where(valid.unsqueeze(-1), after * subject.weights(after), 0.0).sum()
        (gradient,) = torch.autograd.grad(total, changed, materialize_grads=True)
        leaked, size = float(gradient[~valid].abs().max()), float(gradient[valid].abs().max())
        yield Outcome(
            leaked <= 1e-6 * size,
            f"gradient of the valid outputs {where}",
            f"up to {leaked:.2g} in the padding, {size:.2g} elsewhere",
            "zero in the padding",
        )
    alone = [subject.outputs(module, x[row : row + 1, valid[row]])[0] for row in range(rows)]
    yield equal(f"padded rows were compared with unpadded ones {where}", before[valid], torch.cat(alone))
    row = slice(1, 2)  # a batch of one padded row
    y = first_tensor(subject.protocol.call(module, x[row], **{form.argument: form.make(valid[row])}))
    yield equal(f"a batch of one padded row was compared with the unpadded row {where}", y[valid[row]], alone[1])


@torch.no_grad()
def _padded_state(subject: Subject, module: Any) -> Outcome:
    """Continue after a chunk with rows of different lengths: each row must continue from its own end."""
    first, second = subject.draw(2, 6), subject.draw(2, 5, seed=2)
    _, state = module.stream(first, None, torch.tensor([6, 2], device=subject.device))
    y, _ = module.stream(second, state)
    alone = subject.whole(module, torch.cat((first[1:, :2], second[1:]), dim=1))
    return equal("a chunk with a row of length 2 of 6 was continued", y[1], alone[0, 2:])


@torch.no_grad()
def _packed(subject: Subject, module: nn.Module, argument: str) -> Outcome:
    """Compare sequences packed into one row with single sequences."""
    sizes = [7, 1, 12]
    x = subject.draw(1, sum(sizes))
    ends = torch.tensor([0, *sizes]).cumsum(0).to(subject.device, torch.int32)
    did = f"packed sequences of lengths {', '.join(map(str, sizes))} ({argument}) were compared with single ones"
    with attempting(did, "the outputs of single sequences"):
        y = first_tensor(subject.protocol.call(module, x, **{argument: ends}))
    return equal(did, y, torch.cat([subject.whole(module, part) for part in x.split(sizes, dim=1)], dim=1))
