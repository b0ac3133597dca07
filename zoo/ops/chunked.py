"""Shared parts of chunked recurrences: the sequence in chunks, decays between positions, the state between chunks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.ops.precision import widest
from zoo.ops.transforms import followed

# Below the logarithm of the smallest number of any type: the exponential is exactly zero.
_CLEARED = -1e3


def halvable(seq_len: int, most: int) -> int:
    """Return the size of a chunk that is halved repeatedly: the power of two that holds `seq_len`, up to `most`."""
    size = 1
    while size < min(most, seq_len):
        size *= 2
    return size


def into_chunks(
    t: Inexact[Tensor, "batch heads seq width"], size: int
) -> Inexact[Tensor, "batch heads chunks size width"]:
    """Return the sequence cut into chunks of `size`, the last one filled up with zeros."""
    missing = -t.shape[2] % size
    t = F.pad(t, (0, 0, 0, missing)) if missing else t  # padding by nothing would copy
    return t.unflatten(2, (t.shape[2] // size, size))


def chunk_decays(
    step: Float[Tensor, "*batch size"],
) -> tuple[Float[Tensor, "*batch size size"], Float[Tensor, "*batch size"], Float[Tensor, "*batch size"]]:
    """exp of the log-decays added up: after j up to i at (i, j), from the chunk's start up to i, after j to its end.

    Every sum consists of its own steps, so that none loses digits to others. Entries above the diagonal are zero.
    """
    until_end = F.pad(step[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    return segment_sums(step).exp(), step.cumsum(-1).exp(), until_end.exp()


def segment_sums(t: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size size"]:
    """Entry (i, j) is t_{j+1} + ... + t_i for j <= i and minus infinity above the diagonal.

    As a difference of two cumulative sums in float32 it would lose its digits where much has gone before. In float64
    the difference keeps more of them than float32 has, as long as no term is so negative that its exponential is zero
    anyway. Without a wider type (float64 itself, Apple's GPUs) each sum is added up by itself.
    """
    size, wide = t.shape[-1], widest(t.device)
    ones = torch.ones(size, size, dtype=torch.bool, device=t.device)
    if wide != t.dtype:
        total = t.clamp(min=_CLEARED).to(wide).cumsum(-1)
        sums = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(t.dtype)
    else:
        sums = t.unsqueeze(-1).expand(*t.shape, size).masked_fill(ones.triu(), 0.0).cumsum(-2)
    return sums.masked_fill(ones.triu(1), float("-inf"))


def decayed_states(
    state: Inexact[Tensor, "batch heads d_key d_value"],
    decay: Inexact[Tensor, "#batch #heads chunks #d_key #d_value"],
    written: Inexact[Tensor, "batch heads chunks d_key d_value"],
) -> tuple[Inexact[Tensor, "batch heads chunks d_key d_value"], Inexact[Tensor, "batch heads d_key d_value"]]:
    """S_c = decay_c S_{c-1} + written_c, chunk after chunk.

    Returns:
        The state that enters each chunk, and the one after the last.
    """
    if followed():  # these derive their own backward
        return _carry(state, decay, written)
    return _Carry.apply(state, decay, written, False)


def _carry(state: Tensor, decay: Tensor, written: Tensor, order: int = 1) -> tuple[Tensor, Tensor]:
    entering = []
    for a, w in zip(decay.unbind(2)[::order], written.unbind(2)[::order], strict=True):
        entering.append(state)
        state = torch.addcmul(w, a, state)
    return torch.stack(entering[::order], dim=2), state


class _Carry(torch.autograd.Function):
    """`decayed_states`, from the last chunk to the first if `backwards`.

    Its adjoint is the same recurrence the other way round, so that it can be differentiated again. Left to autograd
    each chunk would have its own small reduction for the gradient of its decay; here one does for all.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, decay: Tensor, written: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
        entering, final = _carry(state, decay, written, -1 if backwards else 1)
        ctx.backwards = backwards
        ctx.save_for_backward(decay, entering)
        return entering, final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        decay, entering = ctx.saved_tensors
        grad_entering, grad_final = grads
        arriving, grad_state = _Carry.apply(grad_final, decay.conj(), grad_entering, not ctx.backwards)
        grad_decay = (arriving * entering.conj()).sum_to_size(decay.shape) if ctx.needs_input_grad[1] else None
        return grad_state, grad_decay, arriving, None
