"""State space duality (Mamba-2): a recurrence with one scalar decay per head and step, computed by matrix products."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo.cores import core
from zoo.ops.carry import decayed_states
from zoo.ops.chunked import chunk_decays, even, into_chunks, longest, running_sum
from zoo.ops.precision import DType, as_type, full_precision, product_of, rounded_type
from zoo.ops.ranks import spread
from zoo.ops.transforms import differentiable_again, kernels_suffice, whole_in_export

# Rows of a chunk: larger chunks have more decays between positions, but need fewer states.
CHUNK, CHUNK_OF_LARGE_STATES = 32, 64
LARGE_STATE = 64 * 64  # elements
CHUNK_OF_KERNELS = 64


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor state) -> (Tensor, Tensor)",
    lambda q, k, v, log_decay, state: (state.new_empty(v.shape), state.new_empty(state.shape)),
)
def ssd(
    q: Float[Tensor, "batch groups rows d_key"],
    k: Float[Tensor, "batch groups rows d_key"],
    v: Float[Tensor, "batch heads rows d_value"],
    log_decay: Float[Tensor, "batch heads seq"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads rows d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Dao and Gu 2405.21060, section 6).

    Within a chunk this is the masked quadratic form, weighted by the decay between positions; between chunks the state
    is carried. Decays multiply the values, since these differ between heads anyway. In SSD's notation q is C, k is B
    and v is dt x.

    With rows = rank * seq the recurrence is multi-input multi-output: each step has `rank` consecutive rows, S_t sums
    all of its k v^T and answers all of its queries.

    Args:
        q, k: queries and keys; `groups` divides `heads`, and consecutive heads share a group.
        v: values.
        log_decay: logarithm of the decay, at most zero for a stable recurrence.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    if log_decay.shape[2] == 1:
        return _step(q, k, v, log_decay, state)
    kind = rounded_type(state)
    with full_precision(q.device):
        whole = not state.is_complex() and not spread() and kernels_suffice(state)
        if kind and q.shape[2] == log_decay.shape[2] and whole:
            step = into_chunks(log_decay.float().unsqueeze(3), CHUNK_OF_KERNELS).squeeze(4)
            return _Kernel.apply(kind, q, k, v, running_sum(step).contiguous(), state)
        return _by_products(kind, q, k, v, log_decay, state)


def _by_products(
    kind: DType, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    rows, seq_len = q.shape[2], log_decay.shape[2]
    groups, heads, rank = q.shape[1], v.shape[1], rows // seq_len
    chunk = longest(state, CHUNK if k.shape[3] * v.shape[3] < LARGE_STATE else CHUNK_OF_LARGE_STATES)
    size, product = even(seq_len, max(1, chunk // rank)), product_of(kind)
    # The heads of a group are side by side in the last axis, so one product with its keys or queries serves them all.
    per_group = (groups, heads // groups)
    v = rearrange(v.to(state.dtype).unflatten(1, per_group), "batch group head row d -> batch group row (head d)")
    q, k, v = (into_chunks(t.to(state.dtype), size * rank) for t in (q, k, v))
    step = into_chunks(log_decay.to(state.dtype).unsqueeze(3), size).squeeze(4)
    step = rearrange(step.unflatten(1, per_group), "batch group head chunk t -> batch group chunk head t")
    decay, since_start, until_end = chunk_decays(step)
    if rank > 1:
        decay = decay.repeat_interleave(rank, 4).repeat_interleave(rank, 5)
        since_start, until_end = (t.repeat_interleave(rank, 4) for t in (since_start, until_end))
    since_start, until_end = (
        rearrange(t, "batch group chunk head row -> batch group chunk row head 1") for t in (since_start, until_end)
    )
    v = v.unflatten(4, (per_group[1], -1))  # (batch, groups, chunks, rows, heads of the group, d_value)
    written = product(k.mT, (until_end * v).flatten(4))
    over_chunk = since_start[:, :, :, -1:].expand(-1, -1, -1, -1, -1, v.shape[5]).flatten(4)
    entering = rearrange(state.unflatten(1, per_group), "batch group head key d -> batch group key (head d)")
    entering, final = decayed_states(entering, over_chunk, written)
    carried = since_start * product(q, entering).unflatten(4, v.shape[4:])
    v = rearrange(v, "batch group chunk row head d -> batch group chunk head row d")
    within = product(product(q, k.mT).unsqueeze(3) * decay, v)
    y = carried + rearrange(within, "batch group chunk head row d -> batch group chunk row head d")
    y = rearrange(y.flatten(2, 3)[:, :, :rows], "batch group row head d -> batch (group head) row d")
    final = final.unflatten(3, (per_group[1], -1))
    return y, rearrange(final, "batch group key head d -> batch (group head) key d")


def _step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`ssd` of a single position, for decoding: a dozen operations fewer than a chunk of one."""
    kind = state.dtype
    with full_precision(q.device):
        q, k, v, log_decay = (as_type(kind, t) for t in (q, k, v, log_decay))
        if q.shape[1] != v.shape[1]:  # each head with the keys and queries of its group
            q, k = (t.repeat_interleave(v.shape[1] // t.shape[1], 1) for t in (q, k))
        state = torch.addcmul(k.mT @ v, log_decay.exp().unsqueeze(3), state)
        return q @ state, state


class _Kernel(torch.autograd.Function):
    """`ssd` as Triton kernels, from the sums of the log-decays in each chunk, (batch, heads, chunks, size).

    Used for operands of two bytes; in full float32, the products of cuBLAS are faster.
    """

    @staticmethod
    def forward(ctx: Any, kind: DType, *given: Any) -> tuple[Tensor, Tensor]:
        y, final, kept = _forward(*given, kind)
        ctx.kind = kind
        ctx.save_for_backward(*given, kept)
        return y, final

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        *given, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: use the products, whose gradients allow it
            return None, *differentiable_again(partial(_from_sums, ctx.kind), given, ctx.needs_input_grad[1:], grads)
        grad_q, grad_k, *others = _backward(*grads, *given[:4], kept)
        return None, _shared(grad_q, given[0]), _shared(grad_k, given[1]), *others


def _from_sums(kind: DType, q: Tensor, k: Tensor, v: Tensor, total: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    log_decay = F.pad(total, (1, 0)).diff(dim=3).flatten(2)[:, :, : v.shape[2]]
    return _by_products(kind, q, k, v, log_decay, state)


def _shared(grads: Tensor, q: Tensor) -> Tensor:
    """Sum the gradients of all heads that share queries or keys."""
    if grads.shape[1] == q.shape[1]:
        return grads
    return grads.reshape(len(grads), q.shape[1], -1, *grads.shape[2:]).sum(2).to(q.dtype)


# The kernels are custom ops, so that a compiler sees one operation.


@torch.library.custom_op(
    "zoo::ssd",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor total, Tensor state, ScalarType kind) -> (Tensor, Tensor, Tensor)",
)
def _forward(*given: Any) -> tuple[Tensor, ...]:
    from zoo.ops import ssd_triton

    return ssd_triton.forward(*given)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, total: Tensor, state: Tensor, kind: torch.dtype) -> tuple[Tensor, ...]:
    kept = state.new_empty(*total.shape[:3], *state.shape[2:], dtype=kind)
    return time_first(v, v.shape[3], state.dtype), state.new_empty(state.shape), kept


@torch.library.custom_op(
    "zoo::ssd_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor grad_final, Tensor q, Tensor k, Tensor v, Tensor total, Tensor kept)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(*given: Any) -> tuple[Tensor, ...]:
    from zoo.ops import ssd_triton

    return ssd_triton.backward(*given)


@_backward.register_fake
def _(
    grad_y: Tensor, grad_final: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, kept: Tensor
) -> tuple[Tensor, ...]:
    kinds = (torch.float32 if q.shape[1] != v.shape[1] else t.dtype for t in (q, k))
    of_q, of_k = (time_first(v, q.shape[3], kind) for kind in kinds)
    return (
        of_q,
        of_k,
        time_first(v, v.shape[3], v.dtype),
        torch.empty_like(total),
        grad_final.new_empty(grad_final.shape),
    )


def time_first(like: Tensor, width: int, kind: torch.dtype) -> Tensor:
    """Return an empty (batch, heads, seq, width) tensor whose heads are adjacent in memory, as layers join them."""
    batch, heads, seq_len, _ = like.shape
    return like.new_empty(batch, seq_len, heads, width, dtype=kind).transpose(1, 2)
