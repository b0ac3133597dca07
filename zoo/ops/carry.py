"""The state between chunks of a linear recurrence: one chunk after the other on the CPU, one Triton kernel on CUDA.

Other devices, float64 and transforms of torch.func combine chunks pairwise, in log2(chunks) steps. There, operands are
rounded once; the maps of several chunks and the states are multiplied unrounded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from zoo.ops.precision import DType, product_of
from zoo.ops.ranks import Act, Entering, spread
from zoo.ops.transforms import compiling, kernels_suffice, on_cpu, transformed

Carried = tuple[Tensor, Tensor, Tensor | None]
"""The state that enters each chunk, the final state, and the values that each chunk writes, if it erases."""


def decayed_states(
    state: Inexact[Tensor, "batch heads d_key d_value"],
    decay: Inexact[Tensor, "#batch #heads chunks #d_key #d_value"],
    added: Inexact[Tensor, "batch heads chunks d_key d_value"],
) -> tuple[Inexact[Tensor, "batch heads chunks d_key d_value"], Inexact[Tensor, "batch heads d_key d_value"]]:
    """S_{c+1} = decay_c S_c + added_c, chunk after chunk.

    Returns:
        The state that enters each chunk, and the state after the last.
    """
    entering, final, _ = _carried(None, state, decay, added, None, None, None, None)
    return entering, final


def erased_states(
    state: Float[Tensor, "batch heads d_key d_value"],
    decay: Float[Tensor, "batch heads chunks #d_key 1"],
    keys: Float[Tensor, "batch heads chunks d_key size"],
    sought: Float[Tensor, "batch heads chunks size d_key"],
    values: Float[Tensor, "batch heads chunks size d_value"],
    across: Float[Tensor, "batch heads chunks d_key 1"] | None = None,
    rounded: DType = None,
) -> tuple[
    Float[Tensor, "batch heads chunks d_key d_value"],
    Float[Tensor, "batch heads chunks size d_value"],
    Float[Tensor, "batch heads d_key d_value"],
]:
    """S_{c+1} = decay_c S_c + keys_c written_c, where written_c = values_c - sought_c S_c.

    `across` adds across_c P S_c, where P swaps the upper and lower half of the rows (d_key must be even): the state is
    then two matrices that feed each other. Operands of the products are rounded to the dtype `rounded`
    (`zoo.ops.precision.rounded_type`); sums and states are not.

    Returns:
        The state that enters each chunk, the values that each chunk writes, and the state after the last.
    """
    entering, final, written = _carried(rounded, state, decay, None, keys, sought, values, across)
    assert written is not None
    return entering, written, final


def joined_in_pairs(
    act: Act, state: Tensor, maps: Tensor, added: Tensor, levels: int | None = None
) -> tuple[Tensor, Tensor]:
    """S_{c+1} = act(maps_c, S_c) + added_c, by joining pairs of chunks into one, again and again.

    After `levels` rounds of joining, `decayed_states` handles the remaining chunks. By default it joins until one chunk
    is left.
    """
    if levels == 0:
        return decayed_states(state, maps, added)
    chunks = added.shape[2]
    if chunks == 1:
        final = _applied(act, maps[:, :, 0], state, added[:, :, 0])
        return torch.stack((state,), dim=2), final  # a copy, since an op must not return its argument
    pairs = chunks // 2 * 2
    (first_map, second_map), (first, second) = ((t[:, :, :pairs:2], t[:, :, 1:pairs:2]) for t in (maps, added))
    both = act(second_map, first_map), _applied(act, second_map, first, second)
    entering, final = joined_in_pairs(act, state, *both, None if levels is None else levels - 1)
    between = _applied(act, first_map, entering, first)
    entering = torch.stack((entering, between), dim=3).flatten(2, 3)
    if pairs == chunks:
        return entering, final
    entering = torch.cat((entering, final.unsqueeze(2)), dim=2)
    return entering, _applied(act, maps[:, :, -1], final, added[:, :, -1])


def _carried(kind: DType, *given: Any) -> Carried:
    if entering := spread():
        given = _entering(entering, kind, *given), *given[1:]
    return _on_one_rank(kind, *given)


def _entering(entering: Entering, kind: DType, *given: Any) -> Tensor:
    """Return the state that enters this rank's chunks, from the map of the state over all of them."""
    state, decay, added, keys, sought, values, across = given
    empty = torch.zeros_like(state)
    if keys is None:
        return entering(torch.mul, decay.prod(2), _on_one_rank(kind, empty, *given[1:])[1])
    # Side by side: an empty state that receives the values, and unit vectors that receive nothing.
    unit = torch.eye(state.shape[2], dtype=state.dtype, device=state.device).expand(*state.shape[:2], -1, -1)
    starts, values = torch.cat((empty, unit), dim=3), F.pad(values, (0, state.shape[2]))
    _, ends, _ = _on_one_rank(kind, starts, decay, added, keys, sought, values, across)
    written, over = ends.split((state.shape[3], state.shape[2]), dim=3)
    return entering(torch.matmul, over, written)


def _on_one_rank(kind: DType, *given: Tensor | None) -> Carried:
    if transformed():  # torch.func derives the backward pass itself
        return _run(*_rounded(kind, *given), False)
    return _Carry.apply(kind, *given, False)


def _rounded(kind: DType, *given: Any) -> tuple[Any, ...]:
    """Round keys and sought; the recurrence then rounds the other operands of its products."""
    return given if kind is None else (*given[:3], *(t.to(kind) for t in given[3:5]), *given[5:])


class _Carry(torch.autograd.Function):
    """Both recurrences; if `backwards`, from the last chunk to the first, with the signs of sought and keys reversed.

    The adjoint is the same recurrence in the other direction, so it can be differentiated again: S becomes the gradient
    of the state, `added` the gradients of the entering states, and keys and sought change places. With plain autograd,
    the gradients of the coefficients would take small products for every chunk; here one product computes them for all.
    """

    @staticmethod
    def forward(ctx: Any, kind: DType, *given: Any) -> Carried:
        given = _rounded(kind, *given)
        entering, final, written = _run(*given)
        _, decay, _, keys, sought, _, across, ctx.backwards = given
        ctx.kind = kind
        ctx.save_for_backward(decay, keys, sought, across, entering, written)
        return entering, final, written

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        decay, keys, sought, across, entering, written = ctx.saved_tensors
        grad_entering, grad_final, grad_written = grads
        erasing = (None,) * 3 if keys is None else (sought.mH, keys.mH, grad_written)
        given = grad_final, decay.conj(), grad_entering, *erasing, _swapped(across, 3), not ctx.backwards
        arriving, grad_state, erased = _Carry.apply(ctx.kind, *given)
        grad_decay = (arriving * entering.conj()).sum_to_size(decay.shape) if ctx.needs_input_grad[2] else None
        grad_added = arriving if ctx.needs_input_grad[3] else None
        if keys is None:
            return None, grad_state, grad_decay, grad_added, None, None, None, None, None
        grad_across = None if across is None else (arriving * _swapped(entering, 3)).sum_to_size(across.shape)
        product = product_of(ctx.kind)
        grad_keys, grad_sought = product(arriving, written.mH), product(erased, entering.mH)
        grad_keys, grad_sought = (-grad_keys, grad_sought) if ctx.backwards else (grad_keys, -grad_sought)
        return None, grad_state, grad_decay, grad_added, grad_keys, grad_sought, erased, grad_across, None


def _swapped(t: Tensor | None, axis: int) -> Any:
    """Return `t` with the halves of an axis swapped."""
    return None if t is None else t.roll(t.shape[axis] // 2, axis)


def _run(*given: Any) -> Carried:
    """S_{c+1} = decay_c S_c + across_c P S_c + added_c + keys_c (values_c - sought_c S_c), for the given terms.

    If `backwards`, S_{c-1} = decay_c S_c + across_c P S_c + added_c - keys_c (values_c + sought_c S_c).
    """
    state, keys = given[0], given[3]
    if not kernels_suffice(state) and not compiling():
        return (_one_by_one if on_cpu(state) else _pairwise)(*given)
    if keys is None:
        return *_decayed(*given[:3], given[7]), None
    entering, final, written = _erased(*given)
    return entering, final, written


def _one_by_one(
    state: Tensor,
    decay: Tensor,
    added: Tensor | None,
    keys: Tensor | None,
    sought: Tensor | None,
    values: Tensor | None,
    across: Tensor | None,
    backwards: bool,
) -> Carried:
    decays = decay.unbind(2)
    adds, key, seeks, value = (None if t is None else t.unbind(2) for t in (added, keys, sought, values))
    product = product_of(None if keys is None or keys.dtype == state.dtype else keys.dtype)
    entering, written, sign = [], [], -1 if backwards else 1
    for c in range(len(decays))[::sign]:
        entering.append(state)
        if key is None or seeks is None or value is None:
            assert adds is not None
            state = torch.addcmul(adds[c], decays[c], state)
            continue
        written.append(value[c].sub(product(seeks[c], state), alpha=sign))
        change = product(key[c], written[-1])
        change = change if adds is None else adds[c].add(change, alpha=sign)
        if across is not None:
            change = torch.addcmul(change, across[:, :, c], _swapped(state, 2))
        state = torch.addcmul(change, decays[c], state)
    entering, written = (torch.stack(t[::sign], dim=2) if t else None for t in (entering, written))
    assert entering is not None
    return entering, state, written


def _pairwise(
    state: Tensor,
    decay: Tensor,
    added: Tensor | None,
    keys: Tensor | None,
    sought: Tensor | None,
    values: Tensor | None,
    across: Tensor | None,
    backwards: bool,
) -> Carried:
    if backwards:
        decay, others = decay.flip(2), (added, keys, sought, values, across)
        added, keys, sought, values, across = (None if t is None else t.flip(2) for t in others)
        if sought is not None and keys is not None:
            keys, sought = -keys, -sought
        entering, final, written = _pairwise(state, decay, added, keys, sought, values, across, False)
        return entering.flip(2), final, None if written is None else written.flip(2)
    if keys is None or sought is None or values is None:
        assert added is not None
        return *joined_in_pairs(torch.mul, state, decay, added), None
    keys, sought = keys.to(state.dtype), sought.to(state.dtype)
    transition = decay.squeeze(4).expand(*keys.shape[:4]).diag_embed() - keys @ sought
    if across is not None:
        transition = transition + _swapped(across.squeeze(4).diag_embed(), 4)
    change = keys @ values if added is None else added + keys @ values
    entering, final = joined_in_pairs(torch.matmul, state, transition, change)
    return entering, final, values - sought @ entering


def _applied(act: Act, over: Tensor, state: Tensor, added: Tensor) -> Tensor:
    return torch.addcmul(added, over, state) if act is torch.mul else act(over, state) + added


# Each is one operation to a compiler, whether kernel or loop over chunks. `_Carry` differentiates them.


@torch.library.custom_op(
    "zoo::decayed_states",
    mutates_args=(),
    schema="(Tensor state, Tensor decay, Tensor added, bool backwards) -> (Tensor, Tensor)",
)
def _decayed(state: Tensor, decay: Tensor, added: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
    if kernels_suffice(state):
        from zoo.ops import carry_triton

        return carry_triton.decayed_states(state, decay, added, backwards)
    entering, final, _ = _run(state, decay, added, None, None, None, None, backwards)
    return entering.contiguous(), final.contiguous()


@_decayed.register_fake
def _(state: Tensor, decay: Tensor, added: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
    return added.new_empty(added.shape), state.new_empty(state.shape)


@torch.library.custom_op(
    "zoo::erased_states",
    mutates_args=(),
    schema="(Tensor state, Tensor decay, Tensor? added, Tensor keys, Tensor sought, Tensor values, Tensor? across,"
    " bool backwards) -> (Tensor, Tensor, Tensor)",
)
def _erased(*given: Any) -> tuple[Tensor, ...]:
    if kernels_suffice(given[0]):
        from zoo.ops import carry_triton

        return carry_triton.erased_states(*given)
    return tuple(t.contiguous() for t in _run(*given) if t is not None)


@_erased.register_fake
def _(state: Tensor, decay: Tensor, added: Any, keys: Tensor, sought: Tensor, values: Tensor, *_: Any) -> Any:
    entering = state.new_empty(*state.shape[:2], keys.shape[2], *state.shape[2:])
    return entering, state.new_empty(state.shape), values.new_empty(values.shape)
