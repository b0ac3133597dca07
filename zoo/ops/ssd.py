"""State space duality: a recurrence with one scalar decay per head and step, computed by matrix products."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo.cores import core
from zoo.ops.carry import decayed_states
from zoo.ops.chunked import chunk_decays, into_chunks
from zoo.ops.precision import as_type, chunk_product, full_precision
from zoo.ops.transforms import whole_in_export

# Rows of a chunk: its decays grow with them, and the states, one a chunk, are fewer.
CHUNK, CHUNK_OF_LARGE_STATES = 32, 64
LARGE_STATE = 64 * 64


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

    Within a chunk the masked quadratic form, its entries weighted by the decay between positions; between chunks the
    state. Decays multiply the values, since these differ between heads anyway. In SSD's letters q is C, k is B and
    v is dt x.

    Args:
        q, k: queries and keys; `groups` divides `heads`, and consecutive heads share a group.
        v: values.
        log_decay: logarithm of the decay, at most zero for a stable recurrence.
        state: S before the first position; its dtype is the one computed in.

    With rows = rank * seq the recurrence is multi-input multi-output: each step has `rank` consecutive rows, S_t sums
    all of its k v^T and answers all of its queries.

    Returns:
        Outputs, and S after the last position.
    """
    rows, seq_len = q.shape[2], log_decay.shape[2]
    groups, heads, rank = q.shape[1], v.shape[1], rows // seq_len
    if seq_len == 1:
        return _step(q, k, v, log_decay, state)
    chunk = CHUNK if k.shape[3] * v.shape[3] < LARGE_STATE else CHUNK_OF_LARGE_STATES
    size, product = min(max(1, chunk // rank), seq_len), chunk_product(state)
    # The heads of a group lie side by side in the last axis: one product with its keys, or queries, serves them all.
    per_group = (groups, heads // groups)
    with full_precision(q.device):
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
    """`ssd` of one position, which a decoder asks for: a dozen operations fewer than a chunk of one."""
    kind = state.dtype
    with full_precision(q.device):
        q, k, v, log_decay = (as_type(kind, t) for t in (q, k, v, log_decay))
        if q.shape[1] != v.shape[1]:  # each head with the keys and queries of its group
            q, k = (t.repeat_interleave(v.shape[1] // t.shape[1], 1) for t in (q, k))
        state = torch.addcmul(k.mT @ v, log_decay.exp().unsqueeze(3), state)
        return q @ state, state
